//! Secrets are never printed, and are wiped.
use batzen_crypto::denom::{DenomPrivateKey, ExchangeWithdrawValues};
use batzen_crypto::{
    AgePrivateKey, BlindingSecret, CoinSecrets, CsPrivateKey, CsSigningKey, EcdhePrivateKey, EddsaPrivateKey,
    ExpandedSigner, PlanchetMasterSecret, RefreshMasterSecret, RsaPrivateKey, TransferSecret, base32,
};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// The bytes in all forms in which they could be printed by accident.
fn assert_hidden(debug: &str, bytes: &[u8]) {
    let decimal = format!("{:?}", &bytes[..4]);
    let hex: String = bytes[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    let text = base32::encode(bytes);
    for leak in [decimal.trim_matches(['[', ']']), &hex, &hex.to_uppercase(), &text[..8]] {
        assert!(!debug.contains(leak), "{debug} contains {leak}");
    }
}

macro_rules! check {
    ($($name:ident),*) => {$({
        fn is_wiped<T: ZeroizeOnDrop>(_: &T) {}
        let bytes = std::array::from_fn(|index| 0xa1 ^ index as u8);
        let mut secret = $name::from_bytes(bytes);
        is_wiped(&secret);
        assert_eq!(format!("{secret:?}"), concat!(stringify!($name), "(redacted)"));
        assert_eq!(format!("{:#?}", Some(&secret)), format!("Some(\n    {}(redacted),\n)", stringify!($name)));
        assert_hidden(&format!("{secret:?}"), &bytes);
        assert_eq!(secret.to_base32().parse::<$name>().unwrap(), secret);
        let mut other = bytes;
        other[$name::SIZE - 1] ^= 1;
        assert_ne!(secret, $name::from_bytes(other));
        secret.zeroize();
        assert_eq!(secret.as_bytes(), &[0; $name::SIZE]);
    })*};
}

#[test]
fn secret_types_are_redacted_wiped_and_compared() {
    check!(
        EddsaPrivateKey,
        EcdhePrivateKey,
        CsPrivateKey,
        AgePrivateKey,
        BlindingSecret,
        PlanchetMasterSecret,
        RefreshMasterSecret,
        TransferSecret
    );
}

#[test]
fn composite_types_are_redacted() {
    let master = PlanchetMasterSecret::generate();
    let secrets = CoinSecrets::from_master(&master, &ExchangeWithdrawValues::Rsa);
    let signer = ExpandedSigner::new(&secrets.coin_priv);
    for bytes in [secrets.coin_priv.as_bytes(), secrets.blinding.as_bytes()] {
        assert_hidden(&format!("{secrets:?}"), bytes);
        assert_hidden(&format!("{signer:?}"), bytes);
    }
    let rsa = RsaPrivateKey::generate(1024).unwrap();
    let denom = DenomPrivateKey::Rsa(rsa.clone()).public(0);
    let (_, state) = secrets.prepare(&denom, &ExchangeWithdrawValues::Rsa, None, None).unwrap();
    assert_hidden(&format!("{state:?}"), secrets.blinding.as_bytes());
    assert!(format!("{rsa:?}").starts_with("RsaPrivateKey { public: RsaPublicKey(1024 bits, "));
    let cs = CsPrivateKey::generate();
    assert_hidden(
        &format!("{:?}", DenomPrivateKey::Cs(CsSigningKey::new(cs.clone()).unwrap())),
        cs.as_bytes(),
    );
}

#[test]
fn fresh_secrets_differ() {
    assert_ne!(EddsaPrivateKey::generate(), EddsaPrivateKey::generate());
    assert_ne!(CsPrivateKey::generate(), CsPrivateKey::generate());
    assert_ne!(AgePrivateKey::generate(), AgePrivateKey::generate());
}
