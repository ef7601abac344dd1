//! New connections: the first thread accepts them and refuses those that are too many or come from other machines
//! unasked; the others go to the thread with the fewest.
//!
//! While a long command holds up the first thread, the others accept at their ticks. No thread that is held up gets a
//! connection, because a connection stays with its thread. Ticks tell which threads are held up, so a connection may
//! wait for a second then.

use super::{ACCEPT_PAUSE, Core, FIRST_CONNECTION, Mailbox};
use crate::config::KEEP_ALIVE;
use crate::net::connection::Connection;
use crate::net::tls::Channel;
use crate::session::Session;
use crate::shared::CoreStats;
use mio::net::TcpStream;
use mio::{Interest, Token};
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Connections of one listener that are accepted at once: clients that connect and leave in a loop must not keep the
/// thread from its other clients.
const AT_ONCE: usize = 256;

impl Core {
    /// Accepts the connections that wait at the listeners. After [`AT_ONCE`] of them the thread serves its clients
    /// first.
    pub(super) fn accept(&mut self) {
        self.accept_at = None;
        let Some(listeners) = self.listeners.upgrade() else { return };
        for (listener, tls) in &*listeners {
            for taken in 0.. {
                if taken == AT_ONCE {
                    self.accept_at = Some(Instant::now());
                    break;
                }
                match listener.accept() {
                    Ok((stream, peer)) => self.hand_out(stream, peer, *tls),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                    Err(error) => {
                        // The process is out of descriptors, most likely; other connections will close. Until then, new
                        // ones wait in the system's queue.
                        self.refusals.note_failure(&error);
                        self.accept_at = Some(Instant::now() + ACCEPT_PAUSE);
                        break;
                    }
                }
            }
        }
    }

    /// Gives a connection to the thread with the fewest, among those that are not held up.
    fn hand_out(&mut self, mut stream: TcpStream, peer: SocketAddr, tls: bool) {
        if let Some(refusal) = self.refusal(peer) {
            // The connection is closed whether or not this can be sent.
            if !tls {
                let _ = stream.write(format!("-{refusal}\r\n").as_bytes());
            }
            self.refuse(peer, refusal);
            return;
        }
        let uptime_ms = self.shared.uptime_ms();
        let load = |(index, mailbox): &(usize, &Arc<Mailbox>)| {
            // This thread is not held up, even if its next tick is due.
            let is_held_up = *index != self.index && self.shared.cores[*index].is_held_up(uptime_ms);
            (is_held_up, mailbox.connections.load(Ordering::Relaxed))
        };
        let Some((index, mailbox)) = self.mailboxes.iter().enumerate().min_by_key(load) else { return };
        mailbox.connections.fetch_add(1, Ordering::Relaxed);
        if index == self.index {
            self.admit(stream, peer, tls);
        } else {
            mailbox.arrivals.lock().push((stream, peer, tls));
            // If waking fails, the thread's next tick looks.
            let _ = mailbox.waker.wake();
        }
    }

    fn refusal(&self, peer: SocketAddr) -> Option<&'static str> {
        let settings = &self.shared.settings;
        let total: usize = self.mailboxes.iter().map(|mailbox| mailbox.connections.load(Ordering::Relaxed)).sum();
        if total >= settings.max_clients.load(Ordering::Relaxed) {
            return Some("ERR max number of clients reached");
        }
        let guarded = settings.protected_mode.load(Ordering::Relaxed) && settings.acl.is_open();
        if guarded && !peer.ip().to_canonical().is_loopback() {
            return Some(
                "DENIED hither is in protected mode: it has no password and serves this machine only. Set requirepass, or switch protected-mode off if everybody who can reach it may use it.",
            );
        }
        None
    }

    /// Takes a connection into the loop.
    pub(super) fn admit(&mut self, mut stream: TcpStream, peer: SocketAddr, tls: bool) {
        // Replies are sent whole, so waiting for more bytes gains nothing. If the system refuses, they only leave
        // later.
        let _ = stream.set_nodelay(true);
        if peer.ip().to_canonical().is_loopback() {
            use_plain_congestion_control(&stream);
        } else {
            keep_alive(&stream);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let interests = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self.poll.registry().register(&mut stream, Token(FIRST_CONNECTION + slot), interests) {
            return self.turn_away(slot, peer, &format!("its events cannot be had: {error}"));
        }
        let local = stream.local_addr().map_or_else(|_| "?".to_owned(), |address| address.to_string());
        let channel = match &self.shared.tls {
            Some(config) if tls => config.accept(stream),
            _ => Ok(Channel::plain(stream)),
        };
        let channel = match channel {
            Ok(channel) => channel,
            // The socket was dropped, and its registration with it.
            Err(why) => return self.turn_away(slot, peer, &why),
        };
        CoreStats::add(&self.shared.cores[self.index].connections, 1);
        let client = self.shared.clients.add(peer.to_string(), local, self.index);
        client.slot.store(slot, Ordering::Relaxed);
        let session = Session::new(self.shared.clone(), client);
        self.connections[slot] = Some(Box::new(Connection::new(channel, session)));
    }

    /// Gives back the slot of a connection that cannot be served.
    fn turn_away(&mut self, slot: usize, peer: SocketAddr, why: &str) {
        self.mailboxes[self.index].connections.fetch_sub(1, Ordering::Relaxed);
        self.free.push(slot);
        self.refuse(peer, why);
    }

    /// Counts a refused connection and has it logged.
    pub(super) fn refuse(&mut self, peer: SocketAddr, why: &str) {
        CoreStats::add(&self.shared.cores[self.index].rejected, 1);
        self.refusals.note(peer, why);
    }
}

/// Has a connection from the same machine controlled by the simplest algorithm. Nothing is congested on its way, but
/// BBR, where it is the system's default, would measure each reply and pace it by timers, for 2 % of the processor time
/// of a small command. The connection works whether or not the system agrees.
fn use_plain_congestion_control(stream: impl AsFd) {
    let _ = rustix::net::sockopt::set_tcp_congestion(stream, "reno");
}

/// Number of unanswered probes after which the system gives the connection up, within another [`KEEP_ALIVE`].
const QUESTIONS: u32 = 3;

/// Has the system close a connection whose peer is gone without a word: it would count among the clients for ever, and
/// would be given what it waits for.
fn keep_alive(stream: impl AsFd) {
    use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl};
    let socket = stream.as_fd();
    // The connection works without this.
    let _ = set_tcp_keepidle(socket, KEEP_ALIVE)
        .and_then(|()| set_tcp_keepintvl(socket, KEEP_ALIVE / QUESTIONS))
        .and_then(|()| set_tcp_keepcnt(socket, QUESTIONS))
        .and_then(|()| set_socket_keepalive(socket, true));
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    /// Regression: the connections beyond the first 256 waited for the next tick.
    #[test]
    fn connections_that_are_left_are_taken_without_a_pause() {
        let shared = crate::Shared::new(hither::Db::builder().in_memory().open().unwrap(), crate::Config::default(), 1).unwrap();
        shared.settings.max_clients.store(0, Ordering::Relaxed);
        let listener = mio::net::TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        rustix::net::listen(&listener, 2 * AT_ONCE as i32).unwrap();
        let address = listener.local_addr().unwrap();
        let mut core = super::super::make(&shared, vec![(listener, false)], 1).unwrap().remove(0);
        let clients: Vec<_> = (0..AT_ONCE + 1).map(|_| TcpStream::connect(address).unwrap()).collect();
        core.accept();
        assert_eq!(shared.total(|core| &core.rejected), AT_ONCE as u64);
        assert_eq!(core.patience(), Duration::ZERO);
        core.accept();
        assert_eq!(shared.total(|core| &core.rejected), clients.len() as u64);
        assert!(core.accept_at.is_none() && core.patience() > Duration::ZERO, "the next is an event");
    }

    /// Regression: clients whose machines had gone were never closed.
    #[test]
    fn a_connection_from_elsewhere_is_kept_alive_or_ended() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert!(!sockopt::socket_keepalive(&accepted).unwrap());
        keep_alive(&accepted);
        assert!(sockopt::socket_keepalive(&accepted).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&accepted).unwrap(), KEEP_ALIVE);
        assert_eq!(sockopt::tcp_keepintvl(&accepted).unwrap() * sockopt::tcp_keepcnt(&accepted).unwrap(), KEEP_ALIVE);
        drop(client);
    }

    #[test]
    fn a_local_connection_is_not_paced() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        use_plain_congestion_control(&accepted);
        // Every kernel has it and lets every process use it.
        assert_eq!(rustix::net::sockopt::tcp_congestion(&accepted).unwrap(), "reno");
        drop(client);
    }
}
