//! Signing blinded challenges, and the check that withholds faulty signatures.
//!
//! A signature s = r + c·x with a wrong r or x can reveal the private key. So each one is verified against
//! the public key, which was computed when the key was loaded, and against R, which is derived a second time.

use curve25519_dalek::edwards::CompressedEdwardsY;
use curve25519_dalek::{EdwardsPoint, Scalar};
use zeroize::Zeroizing;

use super::{CsOperation, CsVerifyingKey, Derivation, expand_r_secrets, key_derivation};
use crate::lanes::Choice;
#[cfg(target_arch = "x86_64")]
use crate::lanes::{Wiped, curve};
use crate::{CryptoError, CsNonce, CsPrivateKey, CsScalar};

/// A denomination's private key together with its public key. Cloning is cheap.
#[derive(Clone)]
pub struct CsSigningKey {
    secret: CsPrivateKey,
    public: CsVerifyingKey,
}

impl CsSigningKey {
    /// Derives the public key.
    ///
    /// # Errors
    ///
    /// [`CryptoError::MalformedKey`] if the private key is zero: its public key is the neutral element.
    pub fn new(secret: CsPrivateKey) -> Result<Self, CryptoError> {
        let public = CsVerifyingKey::new(&secret.public()).map_err(|_| CryptoError::MalformedKey)?;
        Ok(Self { secret, public })
    }

    /// Generates a key with the operating system's randomness.
    #[must_use]
    pub fn generate() -> Self {
        Self::new(CsPrivateKey::generate()).expect("a random scalar is not zero")
    }

    /// The private key.
    #[must_use]
    pub const fn secret(&self) -> &CsPrivateKey {
        &self.secret
    }

    #[must_use]
    pub(crate) const fn public(&self) -> &CsVerifyingKey {
        &self.public
    }
}

impl std::fmt::Debug for CsSigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CsSigningKey").field(&self.public).finish()
    }
}

/// One challenge to sign.
#[derive(Clone, Copy, Debug)]
pub struct CsSignRequest<'a> {
    /// The key of the denomination.
    pub key: &'a CsSigningKey,
    /// The nonce of the R values.
    pub nonce: &'a CsNonce,
    /// The purpose of the R values.
    pub operation: CsOperation,
    /// The two blinded challenges.
    pub challenges: [&'a CsScalar; 2],
}

/// The exchange's answer: the chosen clause and the blinded s for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CsBlindSignature {
    /// The clause, 0 or 1.
    pub b: u8,
    /// r_b + c_b · x mod L.
    pub s: CsScalar,
}

/// Signs blinded challenges, in the order of the arguments. Constant time in all secrets.
///
/// Each signature is verified before it is returned. Per item, the result is [`CryptoError::OutOfRange`] if a
/// challenge is not below L: wallets reduce challenges, and a second encoding of one would be a second
/// planchet with the same signature. [`CryptoError::Fault`] if the signature did not pass its check.
#[must_use]
pub fn sign_batch(items: &[CsSignRequest<'_>]) -> Vec<Result<CsBlindSignature, CryptoError>> {
    let (mut for_choices, mut for_nonces) = (None, None);
    let mut results: Vec<_> =
        items.iter().map(|request| sign_one(request, &mut for_choices, &mut for_nonces)).collect();
    withhold_faults(Choice::Fastest, items, &mut results);
    results
}

/// The chosen clause, 0 or 1, and the integer r of that clause.
fn clause<'a>(
    request: &CsSignRequest<'a>,
    for_choices: &mut Derivation<'a>,
    for_nonces: &mut Derivation<'a>,
) -> (u8, Zeroizing<[u8; 32]>) {
    let mut choice = [0; 4];
    key_derivation(for_choices, &request.key.secret, b"b").expand(&mut choice, &[request.nonce.as_bytes()]);
    // The choice is public as soon as the answer is sent.
    let b = choice[0] & 1;
    let prk = key_derivation(for_nonces, &request.key.secret, request.operation.label());
    let r = expand_r_secrets(prk, request.nonce);
    (b, Zeroizing::new(r[usize::from(b)]))
}

fn scalar(encoding: &CsScalar) -> Option<Scalar> {
    Scalar::from_canonical_bytes(*encoding.as_bytes()).into()
}

fn sign_one<'a>(
    request: &CsSignRequest<'a>,
    for_choices: &mut Derivation<'a>,
    for_nonces: &mut Derivation<'a>,
) -> Result<CsBlindSignature, CryptoError> {
    let [Some(c0), Some(c1)] = request.challenges.map(scalar) else {
        return Err(CryptoError::OutOfRange);
    };
    let (b, r) = clause(request, for_choices, for_nonces);
    let r = Zeroizing::new(Scalar::from_bytes_mod_order(*r));
    let c = if b == 0 { c0 } else { c1 };
    let s = *r + c * *request.key.secret.scalar();
    Ok(CsBlindSignature { b, s: CsScalar::from_bytes(s.to_bytes()) })
}

/// The equation that a signature must satisfy before it is released: s·G = R + c·X.
struct Claim<'a> {
    key: &'a CsVerifyingKey,
    /// The encoding of R.
    r: [u8; 32],
    s: &'a CsScalar,
    c: &'a CsScalar,
}

/// Replaces every signature that is not valid for its request by [`CryptoError::Fault`].
fn withhold_faults(
    choice: Choice,
    items: &[CsSignRequest<'_>],
    results: &mut [Result<CsBlindSignature, CryptoError>],
) {
    // Everything is derived again, so that an error during signing does not affect the check.
    let (mut for_choices, mut for_nonces) = (None, None);
    let mut signed = Vec::with_capacity(items.len());
    let mut nonces = Zeroizing::new(Vec::with_capacity(items.len()));
    for (index, request) in items.iter().enumerate() {
        if results[index].is_ok() {
            let (b, r) = clause(request, &mut for_choices, &mut for_nonces);
            signed.push((index, b));
            nonces.push(*r);
        }
    }
    let points = base_multiples(choice, &nonces);
    let (mut places, mut claims) = (Vec::with_capacity(signed.len()), Vec::with_capacity(signed.len()));
    let mut verdicts = vec![false; items.len()];
    for ((index, b), r) in signed.into_iter().zip(points) {
        let Ok(signature) = &results[index] else { continue };
        if signature.b == b && scalar(&signature.s).is_some() {
            let request = &items[index];
            places.push(index);
            claims.push(Claim {
                key: &request.key.public,
                r,
                s: &signature.s,
                c: request.challenges[usize::from(b)],
            });
        }
    }
    for (place, holds) in places.into_iter().zip(hold(choice, &claims)) {
        verdicts[place] = holds;
    }
    for (result, is_valid) in results.iter_mut().zip(verdicts) {
        if result.is_ok() && !is_valid {
            *result = Err(CryptoError::Fault);
        }
    }
}

/// The encodings of r·G for clamped integers r, in constant time.
fn base_multiples(choice: Choice, integers: &[[u8; 32]]) -> Vec<[u8; 32]> {
    #[cfg(target_arch = "x86_64")]
    if choice.takes_lanes(integers.len(), LANES_FROM) {
        let mut scalars = Wiped(Vec::with_capacity(integers.len()));
        scalars.0.extend(integers.iter().map(|r| Scalar::from_bytes_mod_order(*r).to_bytes()));
        return curve::base_multiples(&scalars.0);
    }
    let _ = choice;
    integers.iter().map(|r| EdwardsPoint::mul_base_clamped(*r).compress().to_bytes()).collect()
}

/// The number of base point multiplications from which lanes are faster than the library.
#[cfg(target_arch = "x86_64")]
const LANES_FROM: usize = 3;

/// The claims that hold. All their values are public: the wallet knows them, or learns them from the answer.
fn hold(choice: Choice, claims: &[Claim<'_>]) -> Vec<bool> {
    #[cfg(target_arch = "x86_64")]
    if choice.may_take_lanes() {
        let forced = choice != Choice::Fastest;
        let bulk: Vec<_> =
            (0..claims.len()).filter(|&index| forced || claims[index].key.is_used_often()).collect();
        let equations: Vec<_> = bulk
            .iter()
            .map(|&index| {
                let Claim { key, r, s, c } = &claims[index];
                curve::TableEquation { a: key.tables(), r, s: s.as_bytes(), c: c.as_bytes() }
            })
            .collect();
        let mut found = vec![false; equations.len()];
        curve::check_table_equations(&equations, &mut found);
        let mut by_lanes = bulk.into_iter().zip(found).peekable();
        return claims
            .iter()
            .enumerate()
            .map(|(index, claim)| {
                by_lanes
                    .next_if(|(place, _)| *place == index)
                    .map_or_else(|| claim.holds(), |(_, verdict)| verdict)
            })
            .collect();
    }
    let _ = choice;
    claims.iter().map(Claim::holds).collect()
}

impl Claim<'_> {
    /// By the library.
    fn holds(&self) -> bool {
        let (Some(s), Some(c)) = (scalar(self.s), scalar(self.c)) else { return false };
        let r = EdwardsPoint::vartime_double_scalar_mul_basepoint(&c, &self.key.0.negated, &s);
        r.compress() == CompressedEdwardsY(self.r)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Path;

    const CHOICES: [Choice; 3] = [Choice::Fastest, Choice::Only(Path::Library), Choice::Only(Path::Lanes)];

    fn challenges(count: u8) -> Vec<[CsScalar; 2]> {
        let scalar = |n: u8| CsScalar::from_bytes(Scalar::from_bytes_mod_order([n; 32]).to_bytes());
        (0..count).map(|n| [scalar(2 * n + 1), scalar(2 * n + 2)]).collect()
    }

    fn requests<'a>(
        keys: &'a [CsSigningKey],
        nonces: &'a [CsNonce],
        challenges: &'a [[CsScalar; 2]],
    ) -> Vec<CsSignRequest<'a>> {
        let request = |index: usize| CsSignRequest {
            key: &keys[index % keys.len()],
            nonce: &nonces[index],
            operation: if index.is_multiple_of(3) { CsOperation::Melt } else { CsOperation::Withdraw },
            challenges: [&challenges[index][0], &challenges[index][1]],
        };
        (0..challenges.len()).map(request).collect()
    }

    /// Every kind of wrong signature is detected at every place of a batch, and the other signatures of the
    /// batch are released.
    #[test]
    fn faulty_signatures_are_withheld() {
        let keys: Vec<_> = (0..3).map(|_| CsSigningKey::generate()).collect();
        let nonces: Vec<_> = (0..17).map(|n| CsNonce::from_bytes([n; 32])).collect();
        let challenges = challenges(17);
        let items = requests(&keys, &nonces, &challenges);
        let good = sign_batch(&items);
        assert!(good.iter().all(Result::is_ok));
        for choice in CHOICES {
            let mut results = good.clone();
            withhold_faults(choice, &items, &mut results);
            assert_eq!(results, good, "valid signatures pass");
            for place in 0..items.len() {
                let original = good[place].expect("it was signed");
                let mut bit = *original.s.as_bytes();
                bit[place % 31] ^= 1 << (place % 8);
                let other = good[(place + 1) % items.len()].expect("it was signed");
                for faulty in [
                    CsBlindSignature { b: original.b, s: CsScalar::from_bytes(bit) },
                    CsBlindSignature { b: 1 - original.b, s: original.s },
                    CsBlindSignature { b: original.b, s: other.s },
                    CsBlindSignature { b: original.b, s: CsScalar::from_bytes([0xff; 32]) },
                    CsBlindSignature { b: original.b, s: CsScalar::ZERO },
                ] {
                    let mut results = good.clone();
                    results[place] = Ok(faulty);
                    withhold_faults(choice, &items, &mut results);
                    let mut expected = good.clone();
                    expected[place] = Err(CryptoError::Fault);
                    assert_eq!(results, expected, "{choice:?}, place {place}, {faulty:?}");
                }
            }
        }
    }

    /// If a bit of the private key flips in memory, no signature by it is released.
    #[test]
    fn damaged_key_signs_nothing() {
        let sound = CsSigningKey::generate();
        let nonces: Vec<_> = (0..8).map(|n| CsNonce::from_bytes([n; 32])).collect();
        let challenges = challenges(8);
        for bit in [0, 7, 100, 251] {
            let mut damaged = sound.clone();
            let mut bytes = *damaged.secret.as_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            damaged.secret = CsPrivateKey::from_bytes(bytes);
            for count in [1, 8] {
                let keys = [damaged.clone()];
                let results = sign_batch(&requests(&keys, &nonces[..count], &challenges[..count]));
                assert_eq!(results, vec![Err(CryptoError::Fault); count]);
            }
        }
    }

    /// The group order and larger values are refused as challenges, whichever clause is chosen.
    #[test]
    fn challenges_are_below_the_group_order() {
        let key = CsSigningKey::generate();
        let below = CsScalar::from_bytes((-Scalar::ONE).to_bytes());
        let mut order = super::super::ORDER;
        order.reverse();
        for above in [order, [0xff; 32], {
            order[0] += 1;
            order
        }] {
            let above = CsScalar::from_bytes(above);
            for nonce in (0..8).map(|n| CsNonce::from_bytes([n; 32])) {
                let sign = |challenges| {
                    let operation = CsOperation::Withdraw;
                    sign_batch(&[CsSignRequest { key: &key, nonce: &nonce, operation, challenges }])[0]
                };
                assert!(sign([&below, &below]).is_ok());
                assert_eq!(sign([&above, &below]), Err(CryptoError::OutOfRange));
                assert_eq!(sign([&below, &above]), Err(CryptoError::OutOfRange));
            }
        }
    }
}
