//! Receives and sends bytes on sockets without the C library's overhead. In the C library `recv` and `send` are
//! cancellation points, which costs two atomic operations before and after each call. No thread is cancelled here, and
//! a server makes both calls for each request.

use std::io::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Reads the bytes that have arrived, at most the length of `buffer`. Returns 0 at the end of the stream.
///
/// # Errors
/// As `recv(2)`: `WouldBlock` if a non-blocking socket has no bytes.
#[inline]
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize> {
    let (address, length, none) = (buffer.as_mut_ptr(), buffer.len(), std::ptr::null_mut::<u8>());
    // SAFETY: the kernel writes at most `length` bytes into the buffer, which is borrowed for that, and is not asked
    // for the sender's address.
    outcome(unsafe { libc::syscall(libc::SYS_recvfrom, socket.as_raw_fd(), address, length, 0, none, none) })
}

/// Sends bytes and returns how many the socket took. Raises no signal if the other side is gone.
///
/// # Errors
/// As `send(2)`: `WouldBlock` if a non-blocking socket has no room.
#[inline]
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize> {
    let (address, length, none) = (bytes.as_ptr(), bytes.len(), std::ptr::null_mut::<u8>());
    // SAFETY: the kernel reads the bytes, which are borrowed for that.
    outcome(unsafe { libc::syscall(libc::SYS_sendto, socket.as_raw_fd(), address, length, libc::MSG_NOSIGNAL, none, 0) })
}

#[inline]
fn outcome(returned: libc::c_long) -> Result<usize> {
    usize::try_from(returned).map_err(|_| Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn bytes_arrive_and_ends_are_told() {
        let (one, other) = UnixStream::pair().unwrap();
        let mut buffer = [0; 8];
        other.set_nonblocking(true).unwrap();
        assert_eq!(receive(other.as_fd(), &mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(send(one.as_fd(), b"0123456789").unwrap(), 10);
        assert_eq!((receive(other.as_fd(), &mut buffer).unwrap(), &buffer), (8, b"01234567"));
        assert_eq!((receive(other.as_fd(), &mut buffer).unwrap(), &buffer[..2]), (2, &b"89"[..]));
        drop(one);
        assert_eq!(receive(other.as_fd(), &mut buffer).unwrap(), 0);
        assert_eq!(send(other.as_fd(), b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_full_socket_says_so() {
        let (one, _other) = UnixStream::pair().unwrap();
        one.set_nonblocking(true).unwrap();
        let refused = (0..10_000).find_map(|_| send(one.as_fd(), &[7; 4096]).err()).unwrap();
        assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    }
}
