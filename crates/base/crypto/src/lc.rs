//! The few calls into the C library AWS-LC, the only unsafe code of this crate besides the lanes.
//!
//! Every wrapper owns what it allocates and frees it when dropped. Every pointer passed to C comes from a
//! reference that outlives the call, with the length of that same reference.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ptr::NonNull;

use aws_lc_sys as ffi;
use zeroize::Zeroizing;

use crate::CryptoError;

/// The Ed25519 public key of a seed, and the form of the private key that [`ed25519_sign`] takes: seed ‖
/// public key.
pub(crate) fn ed25519_keypair(seed: &[u8; 32]) -> ([u8; 32], Zeroizing<[u8; 64]>) {
    let mut public = [0; 32];
    let mut private = Zeroizing::new([0; 64]);
    // SAFETY: the function writes 32 bytes to the first and 64 to the second pointer and reads 32 from the
    // third; those are the sizes of the arrays behind them, which do not overlap.
    unsafe { ffi::ED25519_keypair_from_seed(public.as_mut_ptr(), private.as_mut_ptr(), seed.as_ptr()) };
    (public, private)
}

/// Signs with a private key made by [`ed25519_keypair`].
pub(crate) fn ed25519_sign(message: &[u8], private: &[u8; 64]) -> [u8; 64] {
    let mut signature = [0; 64];
    // SAFETY: the function writes 64 bytes to `signature`, reads `message.len()` from `message` and 64 from
    // `private`; the arrays and the slice have these sizes and do not overlap.
    let done = unsafe {
        ffi::ED25519_sign(signature.as_mut_ptr(), message.as_ptr(), message.len(), private.as_ptr())
    };
    assert_eq!(done, 1, "Ed25519 signing fails for no input");
    signature
}

/// X25519 of a scalar (clamped on use) and a u-coordinate, as RFC 7748 computes it for every input.
pub(crate) fn x25519(scalar: &[u8; 32], u: &[u8; 32]) -> Zeroizing<[u8; 32]> {
    let mut shared = Zeroizing::new([0; 32]);
    // SAFETY: all three pointers are to arrays of 32 bytes, which do not overlap. The status only tells
    // whether the result is zero. The result is written in any case, so the status is ignored.
    unsafe { ffi::X25519(shared.as_mut_ptr(), scalar.as_ptr(), u.as_ptr()) };
    shared
}

/// X25519 of a scalar (clamped on use) and the base point.
pub(crate) fn x25519_public(scalar: &[u8; 32]) -> [u8; 32] {
    let mut public = [0; 32];
    // SAFETY: both pointers are to arrays of 32 bytes, which do not overlap.
    unsafe { ffi::X25519_public_from_private(public.as_mut_ptr(), scalar.as_ptr()) };
    public
}

/// An integer of the library, wiped and freed when dropped.
struct Bn(NonNull<ffi::BIGNUM>);

// SAFETY: a BIGNUM is not tied to the thread that made it, and shared references are only read from.
unsafe impl Send for Bn {}
// SAFETY: as above; the functions called with `*const BIGNUM` do not write to it.
unsafe impl Sync for Bn {}

impl Bn {
    fn zero() -> Result<Self, CryptoError> {
        // SAFETY: no arguments; the result is owned by us, or null if memory is out.
        NonNull::new(unsafe { ffi::BN_new() }).map(Self).ok_or(CryptoError::Internal)
    }

    fn from_be(bytes: &[u8]) -> Result<Self, CryptoError> {
        let mut bn = Self::zero()?;
        bn.set_be(bytes)?;
        Ok(bn)
    }

    /// Sets the value from big endian bytes, reusing the existing memory if it is large enough.
    fn set_be(&mut self, bytes: &[u8]) -> Result<(), CryptoError> {
        // SAFETY: reads `bytes.len()` bytes from the slice and writes to the live BIGNUM that we own.
        let done = unsafe { ffi::BN_bin2bn(bytes.as_ptr(), bytes.len(), self.mut_ptr()) };
        if done.is_null() { Err(CryptoError::Internal) } else { Ok(()) }
    }

    /// Writes the value big endian into all of `out`, in time that depends only on sizes.
    fn write_be(&self, out: &mut [u8]) -> Result<(), CryptoError> {
        // SAFETY: writes exactly `out.len()` bytes to the slice, or fails if the value needs more.
        check(unsafe { ffi::BN_bn2bin_padded(out.as_mut_ptr(), out.len(), self.ptr()) })
    }

    /// The value big endian without leading zeros.
    fn to_be(&self) -> Result<Vec<u8>, CryptoError> {
        let mut out = vec![0; self.len()];
        self.write_be(&mut out)?;
        Ok(out)
    }

    /// Size in bytes without leading zeros.
    fn len(&self) -> usize {
        // SAFETY: reads from a live BIGNUM.
        unsafe { ffi::BN_num_bytes(self.ptr()) as usize }
    }

    fn ptr(&self) -> *const ffi::BIGNUM {
        self.0.as_ptr()
    }

    fn mut_ptr(&mut self) -> *mut ffi::BIGNUM {
        self.0.as_ptr()
    }
}

impl Drop for Bn {
    fn drop(&mut self) {
        // SAFETY: we own the BIGNUM, and nobody uses it after this.
        unsafe { ffi::BN_clear_free(self.0.as_ptr()) };
    }
}

/// Scratch memory of the library.
struct Ctx(NonNull<ffi::BN_CTX>);

impl Ctx {
    fn new() -> Result<Self, CryptoError> {
        // SAFETY: no arguments; the result is owned by us, or null if memory is out.
        NonNull::new(unsafe { ffi::BN_CTX_new() }).map(Self).ok_or(CryptoError::Internal)
    }

    fn mut_ptr(&mut self) -> *mut ffi::BN_CTX {
        self.0.as_ptr()
    }
}

impl Drop for Ctx {
    fn drop(&mut self) {
        // SAFETY: we own it, and nobody uses it after this. The library wipes what it frees.
        unsafe { ffi::BN_CTX_free(self.0.as_ptr()) };
    }
}

/// Converts a status of the library into a result, and clears the error details that it has queued for this
/// thread.
fn check(status: std::ffi::c_int) -> Result<(), CryptoError> {
    if status == 1 {
        return Ok(());
    }
    // SAFETY: no arguments, works on thread-local state of the library.
    unsafe { ffi::ERR_clear_error() };
    Err(CryptoError::Internal)
}

/// Memory that operations on public values reuse, so that verification allocates nothing.
struct Scratch {
    ctx: Ctx,
    base: Bn,
    result: Bn,
}

impl Scratch {
    fn new() -> Result<Self, CryptoError> {
        Ok(Self { ctx: Ctx::new()?, base: Bn::zero()?, result: Bn::zero()? })
    }
}

thread_local! {
    static SCRATCH: RefCell<Option<Scratch>> = const { RefCell::new(None) };
}

fn with_scratch<T>(run: impl FnOnce(&mut Scratch) -> Result<T, CryptoError>) -> Result<T, CryptoError> {
    SCRATCH.with_borrow_mut(|scratch| match scratch {
        Some(scratch) => run(scratch),
        None => run(scratch.insert(Scratch::new()?)),
    })
}

/// An odd RSA modulus with a public exponent, ready for arithmetic. All values are big endian bytes and must
/// be below the modulus unless a function says otherwise; results fill `out`, which has the size of the
/// modulus.
pub(crate) struct Modulus {
    n: Bn,
    e: Bn,
    mont: NonNull<ffi::BN_MONT_CTX>,
}

// SAFETY: nothing is tied to a thread, and the Montgomery parameters are only read after construction.
unsafe impl Send for Modulus {}
// SAFETY: as above.
unsafe impl Sync for Modulus {}

impl Drop for Modulus {
    fn drop(&mut self) {
        // SAFETY: we own it, and nobody uses it after this.
        unsafe { ffi::BN_MONT_CTX_free(self.mont.as_ptr()) };
    }
}

impl Modulus {
    /// Prepares `n` and `e`; fails if `n` is even.
    pub(crate) fn new(n: &[u8], e: &[u8]) -> Result<Self, CryptoError> {
        if n.last().is_none_or(|last| last & 1 == 0) {
            return Err(CryptoError::MalformedKey);
        }
        let n = Bn::from_be(n)?;
        let e = Bn::from_be(e)?;
        let mut ctx = Ctx::new()?;
        // SAFETY: `n` is live and odd; the result is owned by us, or null on failure.
        let mont = unsafe { ffi::BN_MONT_CTX_new_for_modulus(n.ptr(), ctx.mut_ptr()) };
        let mont = NonNull::new(mont).ok_or(CryptoError::Internal)?;
        Ok(Self { n, e, mont })
    }

    fn power(&self, result: &mut Bn, base: &Bn, ctx: &mut Ctx) -> Result<(), CryptoError> {
        // SAFETY: all pointers are live; `mont` was made for `n`; the function itself refuses a base not
        // below `n`.
        check(unsafe {
            ffi::BN_mod_exp_mont(
                result.mut_ptr(),
                base.ptr(),
                self.e.ptr(),
                self.n.ptr(),
                ctx.mut_ptr(),
                self.mont.as_ptr(),
            )
        })
    }

    /// a := a · b / 2^k mod n, with the k of the Montgomery representation.
    fn mul_montgomery(&self, a: &mut Bn, b: &Bn, ctx: &mut Ctx) -> Result<(), CryptoError> {
        let a = a.mut_ptr();
        // SAFETY: all pointers are live, the result may be one of the factors, and both factors are below
        // `n`: every caller has checked or computed them so.
        check(unsafe { ffi::BN_mod_mul_montgomery(a, a, b.ptr(), self.mont.as_ptr(), ctx.mut_ptr()) })
    }

    /// a := a · 2^k mod n.
    fn to_montgomery(&self, a: &mut Bn, ctx: &mut Ctx) -> Result<(), CryptoError> {
        let a = a.mut_ptr();
        // SAFETY: all pointers are live, the result may be the argument, and the argument is below `n`.
        check(unsafe { ffi::BN_to_montgomery(a, a, self.mont.as_ptr(), ctx.mut_ptr()) })
    }

    /// a · b mod n.
    fn mul(&self, a: &mut Bn, b: &Bn, ctx: &mut Ctx) -> Result<(), CryptoError> {
        self.to_montgomery(a, ctx)?;
        self.mul_montgomery(a, b, ctx)
    }

    /// base^e mod n for a public base of any size.
    pub(crate) fn public_power(&self, base: &[u8], out: &mut [u8]) -> Result<(), CryptoError> {
        with_scratch(|Scratch { ctx, base: bn, result }| {
            bn.set_be(base)?;
            // SAFETY: both are live.
            if unsafe { ffi::BN_cmp(bn.ptr(), self.n.ptr()) } >= 0 {
                let bn = bn.mut_ptr();
                // SAFETY: all pointers are live, and the result may be the argument.
                check(unsafe { ffi::BN_nnmod(bn, bn, self.n.ptr(), ctx.mut_ptr()) })?;
            }
            self.power(result, bn, ctx)?;
            result.write_be(out)
        })
    }

    /// 2^exponent mod n.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn power_of_two(&self, exponent: usize, out: &mut [u8]) -> Result<(), CryptoError> {
        let exponent = std::ffi::c_int::try_from(exponent).map_err(|_| CryptoError::Internal)?;
        with_scratch(|Scratch { ctx, base, result }| {
            base.set_be(&[])?;
            // SAFETY: the number is live and ours.
            check(unsafe { ffi::BN_set_bit(base.mut_ptr(), exponent) })?;
            // SAFETY: all pointers are live.
            check(unsafe { ffi::BN_nnmod(result.mut_ptr(), base.ptr(), self.n.ptr(), ctx.mut_ptr()) })?;
            result.write_be(out)
        })
    }

    /// The product of public values modulo n, times some power of two. It is only useful for its common
    /// factors with the (odd) modulus.
    pub(crate) fn product_for_gcd<'a>(
        &self,
        mut values: impl Iterator<Item = &'a [u8]>,
        out: &mut [u8],
    ) -> Result<(), CryptoError> {
        with_scratch(|Scratch { ctx, base, result }| {
            result.set_be(values.next().unwrap_or(&[1]))?;
            for value in values {
                base.set_be(value)?;
                self.mul_montgomery(result, base, ctx)?;
            }
            result.write_be(out)
        })
    }

    /// value · secret^e mod n.
    pub(crate) fn blind(&self, value: &[u8], secret: &[u8], out: &mut [u8]) -> Result<(), CryptoError> {
        let mut ctx = Ctx::new()?;
        let secret = Bn::from_be(secret)?;
        let value = Bn::from_be(value)?;
        let mut result = Bn::zero()?;
        self.power(&mut result, &secret, &mut ctx)?;
        self.mul(&mut result, &value, &mut ctx)?;
        result.write_be(out)
    }

    /// a · b mod n for secrets.
    pub(crate) fn secret_product(&self, a: &[u8], b: &[u8], out: &mut [u8]) -> Result<(), CryptoError> {
        let mut ctx = Ctx::new()?;
        let mut a = Bn::from_be(a)?;
        let b = Bn::from_be(b)?;
        self.mul(&mut a, &b, &mut ctx)?;
        a.write_be(out)
    }
}

/// The secret numbers of an RSA key for the Chinese remainder theorem, big endian without leading zeros.
#[cfg(any(test, target_arch = "x86_64"))]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "tests take the primes only"))]
pub(crate) struct CrtParts {
    pub(crate) p: Zeroizing<Vec<u8>>,
    pub(crate) q: Zeroizing<Vec<u8>>,
    /// d modulo p − 1.
    pub(crate) d_p: Zeroizing<Vec<u8>>,
    /// d modulo q − 1.
    pub(crate) d_q: Zeroizing<Vec<u8>>,
    /// 1/q modulo p.
    pub(crate) q_inverse: Zeroizing<Vec<u8>>,
}

/// An RSA private key with everything for the Chinese remainder theorem.
pub(crate) struct Rsa(NonNull<ffi::RSA>);

// SAFETY: the library documents RSA objects as safe to use from many threads at once while nobody changes
// them. We never change them after construction, and their caches have their own locks.
unsafe impl Send for Rsa {}
// SAFETY: as above.
unsafe impl Sync for Rsa {}

impl Drop for Rsa {
    fn drop(&mut self) {
        // SAFETY: we own it, and nobody uses it after this. The library wipes what it frees.
        unsafe { ffi::RSA_free(self.0.as_ptr()) };
    }
}

impl Rsa {
    /// A fresh key with two primes and exponent 65537.
    pub(crate) fn generate(bits: u32) -> Result<Self, CryptoError> {
        let bits = std::ffi::c_int::try_from(bits).map_err(|_| CryptoError::MalformedKey)?;
        // SAFETY: no arguments; the result is owned by us, or null if memory is out.
        let rsa = Self(NonNull::new(unsafe { ffi::RSA_new() }).ok_or(CryptoError::Internal)?);
        let e = Bn::from_be(&[1, 0, 1])?;
        // SAFETY: both pointers are live, and no callback is given. Nobody else knows the new object yet.
        check(unsafe { ffi::RSA_generate_key_ex(rsa.0.as_ptr(), bits, e.ptr(), std::ptr::null_mut()) })?;
        Ok(rsa)
    }

    /// The key with these primes and exponent. The time depends on the primes, so do not use it for keys that
    /// an attacker can have imported repeatedly.
    pub(crate) fn from_primes(p: &[u8], q: &[u8], e: &[u8]) -> Result<Self, CryptoError> {
        let mut ctx = Ctx::new()?;
        let (p, q, e) = (Bn::from_be(p)?, Bn::from_be(q)?, Bn::from_be(e)?);
        let mut product = |a: &Bn, b: &Bn| -> Result<Bn, CryptoError> {
            let mut out = Bn::zero()?;
            // SAFETY: all pointers are live.
            check(unsafe { ffi::BN_mul(out.mut_ptr(), a.ptr(), b.ptr(), ctx.mut_ptr()) })?;
            Ok(out)
        };
        let minus_one = |a: &Bn| -> Result<Bn, CryptoError> {
            let mut out = Bn::zero()?;
            // SAFETY: all pointers are live; the value returned is that of the static constant one.
            check(unsafe { ffi::BN_sub(out.mut_ptr(), a.ptr(), ffi::BN_value_one()) })?;
            Ok(out)
        };
        let (p1, q1) = (minus_one(&p)?, minus_one(&q)?);
        let n = product(&p, &q)?;
        let phi = product(&p1, &q1)?;
        let mut inverse = |a: &Bn, modulus: &Bn| -> Result<Bn, CryptoError> {
            let mut out = Bn::zero()?;
            // SAFETY: all pointers are live; null means that there is no inverse.
            let done = unsafe { ffi::BN_mod_inverse(out.mut_ptr(), a.ptr(), modulus.ptr(), ctx.mut_ptr()) };
            check((!done.is_null()).into()).map_err(|_| CryptoError::MalformedKey)?;
            Ok(out)
        };
        let d = inverse(&e, &phi)?;
        let dmp1 = inverse(&e, &p1)?;
        let dmq1 = inverse(&e, &q1)?;
        let iqmp = inverse(&q, &p)?;
        // SAFETY: all pointers are live, and the function copies what they point to. It checks that the
        // numbers fit together and returns null if not.
        let rsa = unsafe {
            ffi::RSA_new_private_key(
                n.ptr(),
                e.ptr(),
                d.ptr(),
                p.ptr(),
                q.ptr(),
                dmp1.ptr(),
                dmq1.ptr(),
                iqmp.ptr(),
            )
        };
        check((!rsa.is_null()).into()).map_err(|_| CryptoError::MalformedKey)?;
        NonNull::new(rsa).map(Self).ok_or(CryptoError::MalformedKey)
    }

    /// Parses and checks the DER form of RFC 8017, appendix A.1.2.
    pub(crate) fn from_der(der: &[u8]) -> Result<Self, CryptoError> {
        // SAFETY: reads `der.len()` bytes from the slice; the result is owned by us, or null if they are not
        // a key.
        let rsa = unsafe { ffi::RSA_private_key_from_bytes(der.as_ptr(), der.len()) };
        check((!rsa.is_null()).into()).map_err(|_| CryptoError::MalformedKey)?;
        NonNull::new(rsa).map(Self).ok_or(CryptoError::MalformedKey)
    }

    /// The DER form of RFC 8017, appendix A.1.2.
    pub(crate) fn to_der(&self) -> Result<Zeroizing<Vec<u8>>, CryptoError> {
        let mut bytes = std::ptr::null_mut();
        let mut len = 0;
        // SAFETY: the key is live; on success the two out parameters describe a buffer that is ours to free.
        check(unsafe { ffi::RSA_private_key_to_bytes(&raw mut bytes, &raw mut len, self.0.as_ptr()) })?;
        // SAFETY: the buffer has `len` initialised bytes, and nobody else knows it.
        let der = Zeroizing::new(unsafe { std::slice::from_raw_parts(bytes, len) }.to_vec());
        // SAFETY: the buffer came from the library's allocator and is not used after this; freeing wipes it.
        unsafe { ffi::OPENSSL_free(bytes.cast()) };
        Ok(der)
    }

    /// n and e, big endian without leading zeros.
    pub(crate) fn public_parts(&self) -> Result<(Vec<u8>, Vec<u8>), CryptoError> {
        let copy = |borrowed: *const ffi::BIGNUM| -> Result<Vec<u8>, CryptoError> {
            // SAFETY: `borrowed` belongs to the live key; the copy is owned by us, or null if memory is out.
            let copy = NonNull::new(unsafe { ffi::BN_dup(borrowed) }).ok_or(CryptoError::Internal)?;
            Bn(copy).to_be()
        };
        // SAFETY: the key is live, and every key that we make has both parts.
        let (n, e) = unsafe { (ffi::RSA_get0_n(self.0.as_ptr()), ffi::RSA_get0_e(self.0.as_ptr())) };
        Ok((copy(n)?, copy(e)?))
    }

    /// The numbers for the Chinese remainder theorem.
    #[cfg(any(test, target_arch = "x86_64"))]
    pub(crate) fn crt_parts(&self) -> Result<CrtParts, CryptoError> {
        let copy = |borrowed: *const ffi::BIGNUM| -> Result<Zeroizing<Vec<u8>>, CryptoError> {
            check((!borrowed.is_null()).into())?;
            // SAFETY: `borrowed` belongs to the live key and is not null; the copy is owned by us, or null if
            // memory is out.
            let copy = NonNull::new(unsafe { ffi::BN_dup(borrowed) }).ok_or(CryptoError::Internal)?;
            Bn(copy).to_be().map(Zeroizing::new)
        };
        let key = self.0.as_ptr();
        // SAFETY: the key is live; what these return belongs to it, and nobody changes it.
        let (p, q, d_p, d_q, q_inverse) = unsafe {
            (
                ffi::RSA_get0_p(key),
                ffi::RSA_get0_q(key),
                ffi::RSA_get0_dmp1(key),
                ffi::RSA_get0_dmq1(key),
                ffi::RSA_get0_iqmp(key),
            )
        };
        Ok(CrtParts {
            p: copy(p)?,
            q: copy(q)?,
            d_p: copy(d_p)?,
            d_q: copy(d_q)?,
            q_inverse: copy(q_inverse)?,
        })
    }

    /// value^d mod n, in constant time; both have the size of the modulus.
    ///
    /// The library blinds the computation with a random factor, uses the Chinese remainder theorem, and
    /// raises the result to the power of e and compares before it releases it
    /// (`rsa_default_private_transform`), so that a hardware fault cannot leak the factors of n (Boneh,
    /// DeMillo, Lipton 1997).
    ///
    /// It refuses 0, 1, n − 1 and everything from n on.
    pub(crate) fn private_power(&self, value: &[u8], out: &mut [u8]) -> Result<(), CryptoError> {
        let mut len = 0;
        // SAFETY: the key is live; reads `value.len()` bytes and writes at most `out.len()`; the slices do
        // not overlap, since one of them is borrowed mutably. The key is not changed except for caches with
        // their own locks.
        let status = unsafe {
            ffi::RSA_sign_raw(
                self.0.as_ptr(),
                &raw mut len,
                out.as_mut_ptr(),
                out.len(),
                value.as_ptr(),
                value.len(),
                ffi::RSA_NO_PADDING,
            )
        };
        check(status).map_err(|_| CryptoError::Fault)?;
        assert_eq!(len, out.len(), "the result has the size of the modulus");
        Ok(())
    }
}
