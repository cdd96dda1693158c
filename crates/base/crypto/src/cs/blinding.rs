//! Chooses which messages of a batch are blinded in lanes, and which by the library.

#[cfg(target_arch = "x86_64")]
use std::sync::Arc;

use super::{CsBlindRequest, CsBlinded};
use crate::CryptoError;
use crate::lanes::Choice;

/// Blinds; see [`super::blind_batch`].
pub(crate) fn blind(choice: Choice, items: &[CsBlindRequest<'_>]) -> Vec<Result<CsBlinded, CryptoError>> {
    let mut results: Vec<_> = items.iter().map(|_| None).collect();
    #[cfg(target_arch = "x86_64")]
    if choice.may_take_lanes() {
        let forced = choice != Choice::Fastest;
        let mut chosen: Vec<usize> =
            (0..items.len()).filter(|&index| forced || items[index].key.blinds_often()).collect();
        // Neighbours with the same key share the scan of its table.
        chosen.sort_by_key(|&index| Arc::as_ptr(&items[index].key.0));
        in_lanes::blind(choice, items, &chosen, &mut results);
    }
    let _ = choice;
    results
        .into_iter()
        .zip(items)
        .map(|(done, item)| {
            done.unwrap_or_else(|| {
                super::blind(item.key, &item.r_pubs.map(|r_pub| *r_pub), item.message, item.seed)
            })
        })
        .collect()
}

#[cfg(target_arch = "x86_64")]
mod in_lanes {
    use curve25519_dalek::Scalar;
    use zeroize::Zeroizing;

    use crate::cs::{
        CHALLENGE_CONTEXT, CsBlindRequest, CsBlinded, CsUnblind, CsVerifyingKey, Factors, ORDER,
    };
    use crate::eddsa::may_be_point;
    use crate::kdf::{Derivation, kdf_each};
    use crate::lanes::hkdf::{HASHES, Salt, expand_below_each, extract_each};
    use crate::lanes::{Choice, Wiped, curve};
    use crate::{CryptoError, CsRPub, CsScalar, HashCode};

    /// Blinds the items at these places.
    pub(super) fn blind(
        choice: Choice,
        items: &[CsBlindRequest<'_>],
        places: &[usize],
        results: &mut [Option<Result<CsBlinded, CryptoError>>],
    ) {
        let derivations: Vec<_> = places
            .iter()
            .map(|&index| Derivation { salt: b"alphabeta", ikm: items[index].seed.as_bytes(), info: &[] })
            .collect();
        let bytes = kdf_each::<128>(choice, &derivations);
        let factors: Vec<_> = bytes.0.iter().map(Factors::from_bytes).collect();
        // Items that are refused without computation take no lane.
        let usable: Vec<_> = (0..places.len())
            .filter(|&of| items[places[of]].r_pubs.iter().all(|r_pub| may_be_point(r_pub.as_bytes())))
            .collect();
        let clauses = || usable.iter().flat_map(|&of| [(of, 0), (of, 1)]);
        // Multiples of points whose order is L: the integer and its remainder give the same point.
        let reduced = |integer: &[u8; 32]| Scalar::from_bytes_mod_order(*integer).to_bytes();
        let (mut alphas, mut betas) =
            (Wiped(Vec::with_capacity(2 * usable.len())), Wiped(Vec::with_capacity(2 * usable.len())));
        for (of, i) in clauses() {
            alphas.0.push(reduced(&factors[of].alpha[i]));
            betas.0.push(reduced(&factors[of].beta[i]));
        }
        let shifts: Vec<_> = clauses()
            .zip(alphas.0.iter().zip(&betas.0))
            .map(|((of, i), (alpha, beta))| {
                let item = &items[places[of]];
                curve::Shift { r: item.r_pubs[i].as_bytes(), alpha, beta, key: item.key.comb() }
            })
            .collect();
        let blinded = curve::shifted_each(&shifts);
        for &index in places {
            results[index] = Some(Err(CryptoError::InvalidPoint));
        }
        let mut good = Vec::with_capacity(usable.len());
        for ((&of, pair), betas) in
            usable.iter().zip(blinded.as_chunks::<2>().0).zip(betas.0.as_chunks::<2>().0)
        {
            if let [Some(r0), Some(r1)] = *pair {
                good.push((of, [r0, r1], betas));
            }
        }
        let questions: Vec<_> = good
            .iter()
            .flat_map(|(of, r, _)| {
                let item = &items[places[*of]];
                [(item.key, &r[0], item.message), (item.key, &r[1], item.message)]
            })
            .collect();
        let challenges = challenges(&questions);
        for ((of, r, betas), challenges) in good.iter().zip(challenges.as_chunks::<2>().0) {
            let blinded = std::array::from_fn(|i| {
                let beta = Zeroizing::new(Scalar::from_bytes_mod_order(betas[i]));
                CsScalar::from_bytes((challenges[i] + *beta).to_bytes())
            });
            let unblind = CsUnblind { alpha: factors[*of].alpha, blinded_r: r.map(CsRPub::from_bytes) };
            results[places[*of]] = Some(Ok((blinded, unblind)));
        }
    }

    /// The challenge of each key, R' and message; see [`CsVerifyingKey::challenge`].
    fn challenges(items: &[(&CsVerifyingKey, &[u8; 32], &HashCode)]) -> Vec<Scalar> {
        let messages: Vec<_> =
            items.iter().map(|(_, r, message)| [&r[..], message.as_bytes(), &[]]).collect();
        let hashes = curve::sha512_each(&messages, false);
        let mut challenges = Vec::with_capacity(items.len());
        for (items, hashes) in items.chunks(HASHES).zip(hashes.chunks(HASHES)) {
            let salts: Vec<_> = items.iter().map(|(key, ..)| Salt::new(key.0.bytes.as_bytes())).collect();
            let prks = extract_each(salts.iter().zip(hashes.iter().map(|hash| &hash[..])));
            let mut integers = [[0; 32]; HASHES];
            let integers = &mut integers[..items.len()];
            let orders = vec![&ORDER[..]; items.len()];
            let undecided =
                expand_below_each(&prks.0, &orders, CHALLENGE_CONTEXT, integers.as_flattened_mut());
            for (lane, ((key, r, message), integer)) in items.iter().zip(integers).enumerate() {
                integer.reverse();
                let scalar = Option::<Scalar>::from(Scalar::from_canonical_bytes(*integer));
                let decided = undecided >> lane & 1 == 0;
                challenges.push(scalar.filter(|_| decided).unwrap_or_else(|| key.challenge(r, message)));
            }
        }
        challenges
    }
}
