//! The few calls into the C library AWS-LC, and the only unsafe code of this crate.
//!
//! Every wrapper owns what it allocates and frees it when dropped; every pointer given to C is made from a reference
//! that outlives the call, with the length of that same reference.
#![allow(unsafe_code)]

use aws_lc_sys as ffi;
use zeroize::Zeroizing;

/// The Ed25519 public key of a seed, and the form of the private key that [`ed25519_sign`] takes: seed ‖ public key.
pub(crate) fn ed25519_keypair(seed: &[u8; 32]) -> ([u8; 32], Zeroizing<[u8; 64]>) {
    let mut public = [0; 32];
    let mut private = Zeroizing::new([0; 64]);
    // SAFETY: the function writes 32 bytes to the first and 64 to the second pointer and reads 32 from the third;
    // those are the sizes of the arrays behind them, which do not overlap.
    unsafe { ffi::ED25519_keypair_from_seed(public.as_mut_ptr(), private.as_mut_ptr(), seed.as_ptr()) };
    (public, private)
}

/// Signs with a private key made by [`ed25519_keypair`].
pub(crate) fn ed25519_sign(message: &[u8], private: &[u8; 64]) -> [u8; 64] {
    let mut signature = [0; 64];
    // SAFETY: the function writes 64 bytes to `signature`, reads `message.len()` from `message` and 64 from `private`;
    // the arrays and the slice have these sizes and do not overlap.
    let done = unsafe {
        ffi::ED25519_sign(signature.as_mut_ptr(), message.as_ptr(), message.len(), private.as_ptr())
    };
    assert_eq!(done, 1, "Ed25519 signing fails for no input");
    signature
}
