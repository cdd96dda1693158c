//! Macros that define the fixed-size byte types. All have one definition, so that they print, compare and
//! wipe alike.

/// Defines public fixed-size values: `Copy`, ordered, printed as base32.
macro_rules! public_bytes {
    ($($(#[$doc:meta])* $name:ident($size:expr);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name([u8; $size]);

        impl $name {
            /// Size in bytes.
            pub const SIZE: usize = $size;
            /// The value whose bytes are all zero. The protocol uses it in place of an absent optional value.
            pub const ZERO: Self = Self([0; $size]);

            /// The value with these bytes. They are not checked to be a meaningful value.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; $size]) -> Self {
                Self(bytes)
            }

            /// The bytes.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; $size] {
                &self.0
            }

            /// Returns whether all bytes are zero.
            #[must_use]
            pub fn is_zero(&self) -> bool {
                self.0 == [0; $size]
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::ZERO
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }

        impl From<[u8; $size]> for $name {
            fn from(bytes: [u8; $size]) -> Self {
                Self(bytes)
            }
        }

        impl TryFrom<&[u8]> for $name {
            type Error = std::array::TryFromSliceError;
            fn try_from(bytes: &[u8]) -> Result<Self, Self::Error> {
                Ok(Self(bytes.try_into()?))
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                crate::base32::with_encoded(&self.0, |text| f.pad(text))
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = crate::base32::Base32Error;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                crate::base32::decode_array(text).map(Self)
            }
        }
    )*};
}

/// Defines secret fixed-size values: wiped when dropped, compared in constant time, never printed.
macro_rules! secret_bytes {
    ($($(#[$doc:meta])* $name:ident($size:expr);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, zeroize::Zeroize, zeroize::ZeroizeOnDrop)]
        pub struct $name([u8; $size]);

        impl $name {
            /// Size in bytes.
            pub const SIZE: usize = $size;

            /// The secret with these bytes.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; $size]) -> Self {
                Self(bytes)
            }

            /// The bytes. Wipe every copy made of them.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; $size] {
                &self.0
            }

            /// The base32 text, for the few messages that carry secrets. It is wiped when dropped.
            #[must_use]
            pub fn to_base32(&self) -> zeroize::Zeroizing<String> {
                zeroize::Zeroizing::new(crate::base32::encode(&self.0))
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }

        impl TryFrom<&[u8]> for $name {
            type Error = std::array::TryFromSliceError;
            fn try_from(bytes: &[u8]) -> Result<Self, Self::Error> {
                Ok(Self(bytes.try_into()?))
            }
        }

        impl subtle::ConstantTimeEq for $name {
            fn ct_eq(&self, other: &Self) -> subtle::Choice {
                self.0.ct_eq(&other.0)
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                subtle::ConstantTimeEq::ct_eq(self, other).into()
            }
        }

        impl Eq for $name {}

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(concat!(stringify!($name), "(redacted)"))
            }
        }

        impl std::str::FromStr for $name {
            type Err = crate::base32::Base32Error;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                crate::base32::decode_array(text).map(Self)
            }
        }
    )*};
}

pub(crate) use {public_bytes, secret_bytes};
