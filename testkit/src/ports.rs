//! Free ports, each given once.

use std::io::{Error, ErrorKind, Result};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

/// The range, below that of the system's ephemeral ports: otherwise, while a service is down, one of its own clients could
/// be given the service's port.
const FIRST: u16 = 10_240;
const COUNT: u16 = 20_000;

/// Reservations of this process.
static RESERVED: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// Reserves a port of the loopback address that is free now, for the rest of this process. No two processes on this
/// machine get the same one, although neither may have bound it yet: a service that loses its port leaves its client to
/// talk to a stranger.
///
/// # Errors
/// When no port of the range is free.
pub fn reserve() -> Result<u16> {
    let mut bytes = [0; 2];
    batzen_crypto::fill_random(&mut bytes);
    let start = u16::from_le_bytes(bytes) % COUNT;
    for n in 0..COUNT {
        let port = FIRST + (start + n) % COUNT;
        // An abstract address is taken by one process, and free again when that ends.
        let address = SocketAddr::from_abstract_name(format!("batzen-port-{port}"))?;
        let reservation = match UnixListener::bind_addr(&address) {
            Ok(reservation) => reservation,
            Err(error) if error.kind() == ErrorKind::AddrInUse => continue,
            Err(error) => return Err(error),
        };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            RESERVED.lock().unwrap_or_else(PoisonError::into_inner).push(reservation);
            return Ok(port);
        }
    }
    Err(Error::new(ErrorKind::AddrInUse, format!("no free port between {FIRST} and {}", FIRST + COUNT)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_port_is_given_twice() {
        let taken: HashSet<u16> = std::iter::repeat_with(|| reserve().unwrap()).take(100).collect();
        assert_eq!(taken.len(), 100);
        let port = taken.iter().next().unwrap();
        let address = SocketAddr::from_abstract_name(format!("batzen-port-{port}")).unwrap();
        assert_eq!(UnixListener::bind_addr(&address).unwrap_err().kind(), ErrorKind::AddrInUse);
    }
}
