//! The most frequent answers, written without a general serializer. Tests compare each with the serialized form.

use batzen_crypto::{BlindedDenomSignature, EddsaPublicKey, EddsaSignature, base32};
use batzen_http::Response;
use batzen_protocol::Timestamp;

/// The members of a confirmation besides its signatures, and one signature, fit into this buffer, in bytes.
const CONFIRMATION_BYTES: usize = 256;
/// Bytes that a signature adds to a list.
const SIGNATURE_BYTES: usize = 128;
/// A blind signature's members besides its value.
const BLIND_SIGNATURE_BYTES: usize = 96;

/// A JSON text. Its parts are known to need no escapes.
struct Json(Vec<u8>);

impl Json {
    fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    fn put(mut self, text: &str) -> Self {
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    fn put_base32(self, bytes: &[u8]) -> Self {
        base32::with_encoded(bytes, |text| self.put("\"").put(text).put("\""))
    }

    fn put_number(self, number: u64) -> Self {
        // The largest number has twenty digits.
        let mut digits = [0; 20];
        let (mut at, mut rest) = (digits.len(), number);
        loop {
            at -= 1;
            digits[at] = b'0' + u8::try_from(rest % 10).expect("a digit");
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        let Self(mut text) = self;
        text.extend_from_slice(&digits[at..]);
        Self(text)
    }

    fn put_time(self, time: Timestamp) -> Self {
        match time.as_secs() {
            Some(secs) => self.put("{\"t_s\":").put_number(secs).put("}"),
            None => self.put("{\"t_s\":\"never\"}"),
        }
    }

    fn put_blind_signature(self, signature: &BlindedDenomSignature) -> Self {
        match signature {
            BlindedDenomSignature::Rsa(value) => self
                .put("{\"ev_sig\":{\"cipher\":\"RSA\",\"blinded_rsa_signature\":")
                .put_base32(value)
                .put("}}"),
            BlindedDenomSignature::Cs(value) => self
                .put("{\"ev_sig\":{\"cipher\":\"CS\",\"b\":")
                .put_number(value.b.into())
                .put(",\"s\":")
                .put_base32(value.s.as_bytes())
                .put("}}"),
        }
    }

    /// An array, without a comma after the last element.
    fn put_all<T>(self, items: &[T], put: impl Fn(Self, &T) -> Self) -> Self {
        let mut items = items.iter();
        let json = self.put("[");
        let json = match items.next() {
            Some(first) => put(json, first),
            None => json,
        };
        items.fold(json, |json, item| put(json.put(","), item)).put("]")
    }

    fn answer(self) -> Response {
        Response::json_text(200, self.0)
    }
}

/// A [`DepositConfirmation`](batzen_protocol::api::exchange::DepositConfirmation).
pub(crate) fn deposit_confirmation(
    exchange_timestamp: Timestamp,
    exchange_sig: &EddsaSignature,
    exchange_pub: &EddsaPublicKey,
) -> Response {
    Json::with_capacity(CONFIRMATION_BYTES)
        .put("{\"exchange_timestamp\":")
        .put_time(exchange_timestamp)
        .put(",\"exchange_sig\":")
        .put_base32(exchange_sig.as_bytes())
        .put(",\"exchange_pub\":")
        .put_base32(exchange_pub.as_bytes())
        .put("}")
        .answer()
}

/// A [`BatchDepositConfirmation`](batzen_protocol::api::exchange::BatchDepositConfirmation).
pub(crate) fn batch_deposit_confirmation(
    exchange_timestamp: Timestamp,
    exchange_pub: &EddsaPublicKey,
    exchange_sigs: &[EddsaSignature],
) -> Response {
    Json::with_capacity(CONFIRMATION_BYTES + exchange_sigs.len() * SIGNATURE_BYTES)
        .put("{\"exchange_timestamp\":")
        .put_time(exchange_timestamp)
        .put(",\"exchange_pub\":")
        .put_base32(exchange_pub.as_bytes())
        .put(",\"exchange_sigs\":")
        .put_all(exchange_sigs, |json, sig| {
            json.put("{\"exchange_sig\":").put_base32(sig.as_bytes()).put("}")
        })
        .put("}")
        .answer()
}

/// A [`BlindSignature`](batzen_protocol::api::exchange::BlindSignature).
pub(crate) fn blind_signature(ev_sig: &BlindedDenomSignature) -> Response {
    Json::with_capacity(blind_signature_bytes(ev_sig)).put_blind_signature(ev_sig).answer()
}

/// [`BlindSignatures`](batzen_protocol::api::exchange::BlindSignatures).
pub(crate) fn blind_signatures(ev_sigs: &[BlindedDenomSignature]) -> Response {
    Json::with_capacity(32 + ev_sigs.iter().map(blind_signature_bytes).sum::<usize>())
        .put("{\"ev_sigs\":")
        .put_all(ev_sigs, Json::put_blind_signature)
        .put("}")
        .answer()
}

/// About how many bytes a blind signature takes.
fn blind_signature_bytes(signature: &BlindedDenomSignature) -> usize {
    match signature {
        BlindedDenomSignature::Rsa(value) => BLIND_SIGNATURE_BYTES + base32::encoded_len(value.len()),
        BlindedDenomSignature::Cs(_) => BLIND_SIGNATURE_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use batzen_crypto::{CsBlindSignature, CsScalar};
    use batzen_protocol::api::exchange::{
        BatchDepositConfirmation, BlindSignature, BlindSignatures, ConfirmationSignature, DepositConfirmation,
    };
    use serde::Serialize;

    use super::*;

    #[track_caller]
    fn assert_same(ours: &Response, value: &impl Serialize) {
        let serialized = Response::json(200, value);
        assert_eq!(std::str::from_utf8(&ours.body).unwrap(), std::str::from_utf8(&serialized.body).unwrap());
        assert_eq!((ours.status, &ours.headers), (serialized.status, &serialized.headers));
    }

    const TIMES: [Timestamp; 5] = [
        Timestamp::ZERO,
        Timestamp::from_secs(9),
        Timestamp::from_secs(10),
        Timestamp::from_secs(1_795_191_998),
        Timestamp::NEVER,
    ];

    fn signature(byte: u8) -> EddsaSignature {
        EddsaSignature::from_bytes(std::array::from_fn(|place| {
            byte.wrapping_mul(31).wrapping_add(place as u8)
        }))
    }

    #[test]
    fn confirmations_are_those_of_the_serializer() {
        let exchange_pub = EddsaPublicKey::from_bytes([0x5a; 32]);
        for exchange_timestamp in TIMES {
            let exchange_sig = signature(7);
            assert_same(
                &deposit_confirmation(exchange_timestamp, &exchange_sig, &exchange_pub),
                &DepositConfirmation {
                    exchange_timestamp,
                    exchange_sig,
                    exchange_pub,
                    transaction_base_url: None,
                },
            );
            for count in [0, 1, 2, 64] {
                let sigs: Vec<_> = (0..count).map(signature).collect();
                assert_same(
                    &batch_deposit_confirmation(exchange_timestamp, &exchange_pub, &sigs),
                    &BatchDepositConfirmation {
                        exchange_timestamp,
                        exchange_pub,
                        exchange_sigs: sigs
                            .into_iter()
                            .map(|exchange_sig| ConfirmationSignature { exchange_sig })
                            .collect(),
                    },
                );
            }
        }
    }

    #[test]
    fn blind_signatures_are_those_of_the_serializer() {
        let cs = |b| BlindedDenomSignature::Cs(CsBlindSignature { b, s: CsScalar::from_bytes([b + 3; 32]) });
        let rsa = |bytes: usize| BlindedDenomSignature::Rsa((0..bytes).map(|byte| byte as u8).collect());
        let all = [cs(0), cs(1), rsa(1), rsa(128), rsa(256), rsa(512)];
        for ev_sig in &all {
            assert_same(&blind_signature(ev_sig), &BlindSignature { ev_sig: ev_sig.clone() });
        }
        for count in 0..=all.len() {
            let ev_sigs =
                all[..count].iter().map(|ev_sig| BlindSignature { ev_sig: ev_sig.clone() }).collect();
            assert_same(&blind_signatures(&all[..count]), &BlindSignatures { ev_sigs });
        }
    }
}
