//! OpenAPI schemas of the JSON forms in [`crate::serde_impls`].

use std::borrow::Cow;

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::{
    AgePublicKey, AgeSignature, BlindedDenomSignature, BlindedPlanchet, DenomSignature, EddsaPublicKey,
    EddsaSignature, HashCode, ShortHash, WireSalt, Wtid,
};

fn base32() -> RefOr<Schema> {
    let schema = ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some("^[0-9A-HJKMNP-TV-Z]*$"))
        .description(Some("Bytes in Crockford's base32: a key, signature or hash."));
    schema.into()
}

/// An object whose further members depend on its cipher.
fn tagged(members: &[&str]) -> RefOr<Schema> {
    let cipher = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["RSA", "CS"]));
    let mut schema = ObjectBuilder::new().property("cipher", cipher).required("cipher");
    for member in members {
        let kind = if *member == "b" { Type::Integer } else { Type::String };
        schema = schema.property(*member, ObjectBuilder::new().schema_type(kind));
    }
    schema.into()
}

macro_rules! schemas {
    ($($name:ident: $called:literal = $schema:expr;)*) => {$(
        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                $schema
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                Cow::Borrowed($called)
            }
        }
    )*};
}

schemas! {
    HashCode: "Binary" = base32();
    ShortHash: "Binary" = base32();
    EddsaPublicKey: "Binary" = base32();
    EddsaSignature: "Binary" = base32();
    WireSalt: "Binary" = base32();
    Wtid: "Binary" = base32();
    AgePublicKey: "Binary" = base32();
    AgeSignature: "Binary" = base32();
    DenomSignature: "DenomSignature" = tagged(&["rsa_signature", "cs_signature_r", "cs_signature_s"]);
    BlindedDenomSignature: "BlindedDenomSignature" = tagged(&["blinded_rsa_signature", "b", "s"]);
    BlindedPlanchet: "BlindedPlanchet" =
        tagged(&["rsa_blinded_planchet", "cs_nonce", "cs_blinded_c0", "cs_blinded_c1"]);
}
