//! Entry points for fuzzers: lanes and library must never disagree.

use std::sync::LazyLock;

use crate::{EddsaPrivateKey, EddsaPublicKey, EddsaSignature, ExpandedSigner, Path, eddsa};

static SIGNERS: LazyLock<Vec<ExpandedSigner>> =
    LazyLock::new(|| (0..7).map(|i| ExpandedSigner::new(&EddsaPrivateKey::from_bytes([i; 32]))).collect());

/// Parses a batch of signatures from any bytes. Verifies it in both ways and one by one, and signs it in both
/// ways.
///
/// An item is a byte that chooses a key, a byte for the length of the message, the message, a byte for the
/// number of changes, and the changes: their place in key, signature and message, and the new value. With the
/// highest byte for a key, 96 bytes of key and signature follow instead.
pub fn eddsa_paths(mut data: &[u8]) {
    let mut items = Vec::new();
    let mut to_sign = Vec::new();
    while let Some(item) = read_item(&mut data, &mut to_sign) {
        items.push(item);
        if items.len() == 80 {
            break;
        }
    }
    let items: Vec<_> = items.iter().map(|(key, message, sig)| (key, &message[..], sig)).collect();
    let expected: Vec<_> = items.iter().map(|(key, message, sig)| eddsa::verify(key, message, sig)).collect();
    for path in [Path::Library, Path::Lanes] {
        assert_eq!(eddsa::verify_batch_with(path, &items), expected);
    }
    assert_eq!(eddsa::verify_batch(&items), expected);
    assert_eq!(
        eddsa::sign_batch_with(Path::Lanes, &to_sign),
        eddsa::sign_batch_with(Path::Library, &to_sign)
    );
}

fn read_item<'a>(
    data: &mut &'a [u8],
    to_sign: &mut Vec<(&'static ExpandedSigner, &'a [u8])>,
) -> Option<(EddsaPublicKey, Vec<u8>, EddsaSignature)> {
    let (&choice, length) = (data.split_off_first()?, data.split_off_first()?);
    let message = data.split_off(..usize::from(*length))?;
    if choice == 0xff {
        let public = data.split_off(..32)?.try_into().expect("32 bytes");
        let signature = data.split_off(..64)?.try_into().expect("64 bytes");
        return Some((
            EddsaPublicKey::from_bytes(public),
            message.to_vec(),
            EddsaSignature::from_bytes(signature),
        ));
    }
    let signer = &SIGNERS[usize::from(choice) % SIGNERS.len()];
    to_sign.push((signer, message));
    let mut bytes = Vec::new();
    bytes.extend_from_slice(signer.public_key().as_bytes());
    bytes.extend_from_slice(signer.sign(message).as_bytes());
    bytes.extend_from_slice(message);
    for _ in 0..data.split_off_first()? % 8 {
        let (at, change) = (usize::from(*data.split_off_first()?), data.split_off_first()?);
        let at = at % bytes.len();
        bytes[at] ^= change;
    }
    let (public, rest) = bytes.split_first_chunk::<32>().expect("a key comes first");
    let (signature, message) = rest.split_first_chunk::<64>().expect("a signature follows");
    Some((EddsaPublicKey::from_bytes(*public), message.to_vec(), EddsaSignature::from_bytes(*signature)))
}
