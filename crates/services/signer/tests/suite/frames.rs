//! Frames of every kind: what is written can be read again, and no input breaks the reader.

use batzen_crypto::cs::{CsBlindSignature, CsOperation};
use batzen_crypto::{CsNonce, CsRPub, CsScalar, EddsaPublicKey, EddsaSignature};
use batzen_signer::frame::{
    BATCH_ITEMS_MAX, HEADER_BYTES, Header, ItemStatus, Kind, MESSAGE_BYTES_MAX, Side, Status,
};
use batzen_signer::fuzz_entry;
use batzen_signer::items::{Item, KeyId, SignedItem, parse_answer, push_answer};
use proptest::prelude::*;

const SIGNING: [Kind; 4] = [Kind::Rsa, Kind::Cs, Kind::Values, Kind::Eddsa];

fn bytes<const N: usize>() -> impl Strategy<Value = [u8; N]> {
    proptest::array::uniform::<_, N>(any::<u8>())
}

fn operation() -> impl Strategy<Value = CsOperation> {
    any::<bool>().prop_map(|melt| if melt { CsOperation::Melt } else { CsOperation::Withdraw })
}

fn item(kind: Kind) -> BoxedStrategy<Item> {
    let key = bytes::<32>();
    match kind {
        Kind::Rsa => (key, bytes::<128>())
            .prop_map(|(key, blinded)| Item::Rsa { key: KeyId(key), blinded: blinded.to_vec() })
            .boxed(),
        Kind::Cs => (key, operation(), bytes::<32>(), bytes::<32>(), bytes::<32>())
            .prop_map(|(key, operation, nonce, c0, c1)| Item::Cs {
                key: KeyId(key),
                operation,
                nonce: CsNonce::from_bytes(nonce),
                challenges: [CsScalar::from_bytes(c0), CsScalar::from_bytes(c1)],
            })
            .boxed(),
        Kind::Values => (key, operation(), bytes::<32>())
            .prop_map(|(key, operation, nonce)| Item::Values {
                key: KeyId(key),
                operation,
                nonce: CsNonce::from_bytes(nonce),
            })
            .boxed(),
        _ => (key, prop::collection::vec(any::<u8>(), 0..=MESSAGE_BYTES_MAX))
            .prop_map(|(key, message)| Item::Eddsa { key: EddsaPublicKey::from_bytes(key), message })
            .boxed(),
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(data in prop::collection::vec(any::<u8>(), 0..2048)) {
        fuzz_entry::frames(&data);
    }

    /// Random bytes rarely resemble a frame, so this changes a few bytes of valid frames.
    #[test]
    fn damaged_frames_of_every_kind_are_read_or_refused(
        kind in prop::sample::select(Kind::ALL.to_vec()),
        count in 1usize..3,
        id in any::<u64>(),
        fill in any::<u8>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let modulus = if kind == Kind::Rsa { 128 } else { 0 };
        let header = Header::request(kind, modulus, count, id);
        let mut frame = header.to_bytes().to_vec();
        frame.resize(HEADER_BYTES + header.body, fill);
        for (place, byte) in damage {
            let place = place.index(frame.len());
            frame[place] = byte;
        }
        fuzz_entry::frames(&frame);
    }

    #[test]
    fn items_come_back_as_they_were_sent(
        (kind, items) in prop::sample::select(SIGNING.to_vec())
            .prop_flat_map(|kind| (Just(kind), prop::collection::vec(item(kind), 1..5))),
    ) {
        let modulus = items[0].modulus();
        let mut body = Vec::new();
        for item in &items {
            item.push(&mut body);
        }
        let header = Header::request(kind, modulus, items.len(), 7);
        prop_assert_eq!(header.body, body.len(), "the size depends only on the kind");
        prop_assert_eq!(Header::from_bytes(&header.to_bytes(), Side::Request), Ok(header));
        let size = kind.request_item(modulus);
        let read: Vec<_> = body.chunks_exact(size).map(|bytes| Item::parse(kind, bytes).unwrap()).collect();
        prop_assert_eq!(read, items);
    }

    #[test]
    fn answers_come_back_as_they_were_sent(
        b in 0u8..2, one in bytes::<32>(), other in bytes::<32>(), rsa in bytes::<128>(),
        refusal in 1u8..7, refused in any::<bool>(),
    ) {
        let signature = EddsaSignature::from_bytes([one, other].concat().try_into().unwrap());
        let zeros = rsa.iter().take_while(|byte| **byte == 0).count();
        for (kind, modulus, made) in [
            (Kind::Rsa, 128, SignedItem::Rsa(rsa[zeros..].to_vec())),
            (Kind::Cs, 0, SignedItem::Cs(CsBlindSignature { b, s: CsScalar::from_bytes(one) })),
            (Kind::Values, 0, SignedItem::Values([CsRPub::from_bytes(one), CsRPub::from_bytes(other)])),
            (Kind::Eddsa, 0, SignedItem::Eddsa(signature)),
            (Kind::RevokeSigning, 0, SignedItem::Nothing),
        ] {
            let result = if refused { Err(ItemStatus::from_number(refusal).unwrap()) } else { Ok(made) };
            let mut out = Vec::new();
            push_answer(kind, modulus, &result, &mut out);
            prop_assert_eq!(Some(out.len()), kind.answer_item(modulus));
            prop_assert_eq!(parse_answer(kind, &out), Ok(result));
        }
    }
}

#[test]
fn headers_beyond_the_limits_are_refused() {
    let good = Header::request(Kind::Rsa, 256, 2, 1);
    assert!(Header::from_bytes(&good.to_bytes(), Side::Request).is_ok());
    let none = Header { count: 0, body: 0, ..good };
    let many = Header::request(Kind::Eddsa, 0, BATCH_ITEMS_MAX + 1, 1);
    let two_listings = Header::request(Kind::Listing, 0, 2, 1);
    let odd_modulus = Header::request(Kind::Rsa, 257, 2, 1);
    let small_modulus = Header::request(Kind::Rsa, 64, 2, 1);
    let modulus_for_nothing = Header { modulus: 256, ..Header::request(Kind::Cs, 0, 1, 1) };
    let other_size = Header { body: good.body + 1, ..good };
    let refusal = good.refusal(Status::Busy);
    for bad in
        [none, many, two_listings, odd_modulus, small_modulus, modulus_for_nothing, other_size, refusal]
    {
        assert!(Header::from_bytes(&bad.to_bytes(), Side::Request).is_err(), "{bad:?}");
    }
    assert!(Header::from_bytes(&refusal.to_bytes(), Side::Answer).is_ok());
    let huge = Header::request(Kind::Listing, 0, 1, 1).blob(1 << 30);
    assert!(Header::from_bytes(&huge.to_bytes(), Side::Answer).is_err());
    let mut trailing = good.to_bytes();
    trailing[23] = 1;
    assert!(Header::from_bytes(&trailing, Side::Request).is_err());
}
