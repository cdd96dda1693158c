//! The kernel's questions before the syncs of a process (seccomp's user notification): the part that needs `unsafe`.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

/// Once a question was received, only a fatal signal withdraws it (Linux 5.19), so that a process that gets many signals is not
/// asked about the same sync again and again.
const WAIT_KILLABLE: libc::c_ulong = 1 << 5;
/// Instructions of the filter: load a word of the system call's description, compare, return.
const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// The questions of all processes that the calling thread starts from now on. The thread itself must not sync files.
///
/// # Errors
/// When the kernel has no notifications, or another program has the questions of this thread already.
pub(super) fn listen() -> io::Result<OwnedFd> {
    // The kernel asks this of those who are not root, and a process of an experiment needs no more rights than it is given.
    rustix::thread::set_no_new_privs(true)?;
    let number = |call: libc::c_long| u32::try_from(call).map_err(io::Error::other);
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    // The number of the call is the first word. This slows things down and protects nothing, so the architecture does not matter.
    let mut filter = [
        step(LOAD, 0, 0, 0),
        step(JUMP_IF_EQUAL, 2, 0, number(libc::SYS_fsync)?),
        step(JUMP_IF_EQUAL, 1, 0, number(libc::SYS_fdatasync)?),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(RETURN, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
    ];
    let program = libc::sock_fprog { len: 5, filter: filter.as_mut_ptr() };
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE;
    // SAFETY: the program and its instructions live until the call returns, which copies them.
    let listener = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, std::ptr::from_ref(&program))
    };
    if listener < 0 {
        return Err(io::Error::last_os_error());
    }
    let listener = RawFd::try_from(listener).map_err(io::Error::other)?;
    // SAFETY: the call has just made this descriptor, which nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(listener) })
}

/// The next question, if it was not withdrawn. Waits unless the listener is readable.
///
/// # Errors
/// When the listener is not one.
pub(super) fn receive(listener: &OwnedFd) -> io::Result<Option<u64>> {
    // SAFETY: the structure consists of integers, which may all be zero, as the call requires.
    let mut question: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes one structure of this type.
    let result =
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut question) };
    match result {
        0 => Ok(Some(question.id)),
        _ => withdrawn(None),
    }
}

/// Lets a sync go on. Its process may have ended meanwhile.
///
/// # Errors
/// When the listener is not one.
pub(super) fn go_on(listener: &OwnedFd, id: u64) -> io::Result<()> {
    let flags = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).map_err(io::Error::other)?;
    let mut answer = libc::seccomp_notif_resp { id, val: 0, error: 0, flags };
    // SAFETY: the call reads one structure of this type.
    let result =
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) };
    if result == 0 { Ok(()) } else { withdrawn(()) }
}

/// The value if the call failed because the process has ended, or a signal came.
fn withdrawn<T>(value: T) -> io::Result<T> {
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::EINTR) => Ok(value),
        _ => Err(error),
    }
}
