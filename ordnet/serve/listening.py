"""The socket, before anything heavy is loaded: a taken port is known at once."""

import ipaddress
import socket

from ordnet.errors import OrdnetError


def bound(host: str, port: int) -> socket.socket:
    """Listens on an address of this machine; port 0 takes any that is free."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except socket.gaierror:
        raise OrdnetError(
            f"there is no host {host!r}; --host takes an address of this machine, such as 127.0.0.1"
        ) from None
    except OSError as error:
        raise OrdnetError(
            f"cannot listen on {host}, port {port}: {error.strerror}; choose another --port, or end what uses this one"
        ) from None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
