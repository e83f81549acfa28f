"""How the agent knows that it speaks to its server: a CA, or one certificate by its fingerprint.

With a fingerprint the server's certificate is fetched, compared, and then made the only one that
the connection will accept: nothing, not even the join token, is sent to another holder.
"""

import asyncio
import hashlib
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from llmgw_common.errors import LlmgwError


async def tls_context(
    server: str, *, ca_file: Path | None, fingerprint: str | None
) -> ssl.SSLContext | None:
    """Return the TLS context for connections to `server`, None if it is plain text.

    Args:
        server: base URL.
        ca_file: PEM file with the CA; the system's CAs if None.
        fingerprint: SHA-256 of the certificate as hex, colons allowed; in place of a CA.

    Raises:
        LlmgwError: `unauthenticated`, the certificate is not the pinned one.
        OSError: the server cannot be reached, or the CA file not be read.
    """
    parts = urlsplit(server)
    if parts.scheme != "https":
        return None
    if fingerprint is None:
        return ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    address = (parts.hostname or "", parts.port or 443)
    pem = await asyncio.to_thread(ssl.get_server_certificate, address, timeout=10.0)
    found = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    if found != fingerprint.replace(":", "").lower():
        text = f"the certificate of {parts.hostname} is not the pinned one (tls.fingerprint)"
        raise LlmgwError("unauthenticated", text)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the very certificate is checked instead of its name
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=pem)
    return context
