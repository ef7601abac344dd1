//! The addresses that a server listens at.
//!
//! `::` alone takes IPv4 clients as well, whatever the system's default is. Beside an IPv4 address it takes IPv6
//! clients only, because the system would report the port as in use.

use super::StartError;
use mio::net::TcpListener;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::net::{IpAddr, SocketAddr};

/// Connections that may wait to be accepted; the system has a bound of its own.
const BACKLOG: i32 = 4096;

/// Returns a socket bound to `ip` and `port`; `among` are all addresses of the server. No client can connect to it yet.
///
/// # Errors
/// The system's: another process has the address, it is not this machine's, or it needs privileges.
pub fn bind(ip: IpAddr, port: u16, among: &[IpAddr]) -> std::io::Result<OwnedFd> {
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if ip.is_ipv6() && ip.is_unspecified() {
        sockopt::set_ipv6_v6only(&socket, among.iter().any(IpAddr::is_ipv4))?;
    }
    rustix::net::bind(&socket, &SocketAddr::new(ip, port))?;
    Ok(socket)
}

/// Listens at all addresses. If `port` is 0, all get the same free port.
pub(super) fn at(addresses: &[IpAddr], mut port: u16) -> Result<Vec<(SocketAddr, TcpListener)>, StartError> {
    let mut listeners = Vec::new();
    for ip in addresses {
        let bound = bind(*ip, port, addresses).and_then(|socket| {
            // A longer queue than libraries ask for: otherwise clients of a burst would depend on the retries of their
            // systems.
            rustix::net::listen(&socket, BACKLOG)?;
            let listener = TcpListener::from_std(socket.into());
            Ok((listener.local_addr()?, listener))
        });
        let (bound, listener) = bound.map_err(|source| StartError::Listen { address: SocketAddr::new(*ip, port), source })?;
        port = bound.port();
        listeners.push((bound, listener));
    }
    Ok(listeners)
}

/// Returns two of these addresses at which one server cannot listen with the same port.
pub fn colliding(addresses: &[IpAddr]) -> Option<(IpAddr, IpAddr)> {
    let collide = |a: &IpAddr, b: &IpAddr| a == b || a.is_ipv4() == b.is_ipv4() && (a.is_unspecified() || b.is_unspecified());
    let pairs = addresses.iter().enumerate().flat_map(|(number, a)| addresses[..number].iter().map(move |b| (*b, *a)));
    pairs.into_iter().find(|(a, b)| collide(a, b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_collide_with_their_like() {
        let of = |text: &str| colliding(&text.split(' ').map(|ip| ip.parse().unwrap()).collect::<Vec<_>>());
        for text in ["127.0.0.1", "0.0.0.0 ::", ":: 0.0.0.0", "127.0.0.1 ::1", ":: 127.0.0.1", "127.0.0.1 10.0.0.1"] {
            assert_eq!(of(text), None, "{text}");
        }
        for text in ["127.0.0.1 ::1 127.0.0.1", "0.0.0.0 127.0.0.1", "10.0.0.1 :: 0.0.0.0", "::1 ::"] {
            assert!(of(text).is_some(), "{text}");
        }
    }
}
