//! Frames: a header of 24 bytes and a body. Pure functions of bytes. `docs/signer.md` specifies the format.
//!
//! A request's body is a batch of items. Their size follows from the kind (and, for RSA, from the size of the
//! modulus), so the length of a request reveals how many items of which kind it has, and nothing else.
//! Answers to signing requests are batches of items as well, one per requested item, in the same order. The
//! other answers (lists of keys, private keys for followers, status) are blobs, padded with zeros to a
//! multiple of `BLOB_BLOCK_BYTES`.

use std::ops::Range;

/// Size of a frame's header, in bytes.
pub const HEADER_BYTES: usize = 24;
/// The version of the protocol that this crate speaks.
pub const VERSION: u16 = 1;
/// The first bytes of a hello, so that a client of another protocol is recognised.
pub(crate) const MAGIC: [u8; 8] = *b"BTZSIGNR";
/// The maximum number of items in one frame.
pub const BATCH_ITEMS_MAX: usize = 256;
/// The largest blob, in bytes.
pub(crate) const BLOB_BYTES_MAX: usize = 64 << 20;
/// Blobs are padded to multiples of this.
pub(crate) const BLOB_BLOCK_BYTES: usize = 4096;
/// The largest modulus, in bytes.
pub(crate) const MODULUS_BYTES_MAX: usize = crate::config::RSA_BITS_MAX as usize / 8;
/// The largest message that an online key signs, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 312;
/// Size of a key's name in items: the first half of its hash, or an Ed25519 public key.
pub const KEY_ID_BYTES: usize = 32;
/// Size of the header of an answer's item: its status and seven zeros (the second byte may carry a bit).
pub(crate) const ITEM_STATUS_BYTES: usize = 8;

batzen_protocol::enumeration! {
    /// Kind of a frame.
    pub enum Kind {
        /// The first frame of a connection, in both directions.
        Hello = 1 => "hello",
        /// The public keys, sent as soon as they differ from those that the client knows.
        Listing = 2 => "listing",
        /// Blind RSA signatures with moduli of one size.
        Rsa = 3 => "rsa",
        /// Clause Blind Schnorr signatures.
        Cs = 4 => "cs",
        /// First messages of Clause Blind Schnorr coins.
        Values = 5 => "csr",
        /// Ed25519 signatures of online keys.
        Eddsa = 6 => "eddsa",
        /// Destroys a denomination key that the master key has revoked.
        RevokeDenomination = 7 => "revoke-denomination",
        /// Destroys an online key that the master key has revoked.
        RevokeSigning = 8 => "revoke-signing-key",
        /// Private keys, for a follower.
        Secrets = 9 => "secrets",
        /// Status of the signer.
        Status = 10 => "status",
        /// Makes the signer the primary, which creates keys.
        Promote = 11 => "promote",
    }
}

impl Kind {
    /// The size of one item of a request, in bytes. `modulus` matters only for RSA.
    pub const fn request_item(self, modulus: usize) -> usize {
        match self {
            Self::Hello => HELLO_BYTES,
            Self::Listing => 16,
            Self::Rsa => KEY_ID_BYTES + modulus,
            Self::Cs => KEY_ID_BYTES + 8 + 3 * 32,
            Self::Values => KEY_ID_BYTES + 8 + 32,
            Self::Eddsa => KEY_ID_BYTES + 8 + MESSAGE_BYTES_MAX,
            Self::RevokeDenomination => KEY_ID_BYTES + 8 + 64,
            Self::RevokeSigning => KEY_ID_BYTES + 64,
            Self::Secrets => 8 + KEY_ID_BYTES,
            Self::Status | Self::Promote => 8,
        }
    }

    /// The size of one item of an answer, in bytes; `None` if the answer is a blob.
    pub const fn answer_item(self, modulus: usize) -> Option<usize> {
        match self {
            Self::Hello => Some(HELLO_BYTES),
            Self::Rsa => Some(ITEM_STATUS_BYTES + modulus),
            Self::Cs => Some(ITEM_STATUS_BYTES + 32),
            Self::Values | Self::Eddsa => Some(ITEM_STATUS_BYTES + 64),
            Self::RevokeDenomination | Self::RevokeSigning => Some(ITEM_STATUS_BYTES),
            Self::Listing | Self::Secrets | Self::Status | Self::Promote => None,
        }
    }

    /// The permitted numbers of items in a request.
    pub const fn items(self) -> Range<usize> {
        match self {
            Self::Rsa | Self::Cs | Self::Values | Self::Eddsa => 1..BATCH_ITEMS_MAX + 1,
            Self::Secrets => 1..SECRETS_MAX + 1,
            _ => 1..2,
        }
    }
}

/// The maximum number of private keys in one answer.
pub(crate) const SECRETS_MAX: usize = 64;

batzen_protocol::enumeration! {
    /// Status of a request as a whole. Answers that are not [`Status::Done`] have no body.
    pub enum Status {
        /// Done. Requests carry this status too.
        Done = 0,
        /// Too much is waiting: nothing was done. Try again later.
        Busy = 1,
        /// The client may not do this.
        Forbidden = 2,
        /// No common version. The connection ends.
        Version = 3,
        /// Malformed bytes. The connection ends.
        Malformed = 4,
        /// There are no keys yet.
        NotReady = 5,
        /// The signer failed; its log says why.
        Failed = 6,
    }
}

batzen_protocol::enumeration! {
    /// Status of one item: the first byte of an answer's item.
    pub enum ItemStatus {
        /// Signed, or destroyed.
        Done = 0,
        /// The key does not exist here.
        UnknownKey = 1,
        /// The key is outside of its signing period.
        OutOfPeriod = 2,
        /// Online keys do not sign this message.
        NotAllowed = 3,
        /// Not valid for this key, because a number is out of range.
        Planchet = 4,
        /// The master key's signature is missing or wrong.
        BadSignature = 5,
        /// The computed signature failed its check.
        Failed = 6,
    }
}

/// Header of a frame. Numbers are little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of the frame.
    pub kind: Kind,
    /// Status of the request.
    pub status: Status,
    /// For RSA, the size of the moduli in bytes, otherwise 0.
    pub modulus: usize,
    /// Number of items in the body; 0 for blobs.
    pub count: usize,
    /// The request's number, chosen by the client. The answer has the same number.
    pub id: u64,
    /// Size of the body, in bytes.
    pub body: usize,
}

/// Malformed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed frame")]
pub struct Malformed;

/// Direction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// From the client.
    Request,
    /// From the signer.
    Answer,
}

const fn is_modulus(bytes: usize) -> bool {
    bytes >= crate::config::RSA_BITS_MIN as usize / 8
        && bytes <= MODULUS_BYTES_MAX
        && bytes.is_multiple_of(16)
}

impl Header {
    /// A request's header.
    pub fn request(kind: Kind, modulus: usize, count: usize, id: u64) -> Self {
        let body = count * kind.request_item(modulus);
        Self { kind, status: Status::Done, modulus, count, id, body }
    }

    /// The header of an answer with items.
    pub fn answer(self) -> Self {
        let item = self.kind.answer_item(self.modulus).expect("the answer consists of items");
        Self { body: self.count * item, ..self }
    }

    /// The header of an answer with a blob of this many bytes.
    pub fn blob(self, body: usize) -> Self {
        Self { count: 0, body, ..self }
    }

    /// The header of an answer without a body. The status gives the reason.
    pub fn refusal(self, status: Status) -> Self {
        Self { status, count: 0, body: 0, ..self }
    }

    /// The header as bytes.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let small = |value: usize| u32::try_from(value).expect("sizes have limits").to_le_bytes();
        let mut out = [0; HEADER_BYTES];
        out[0] = self.kind as u8;
        out[1] = self.status as u8;
        out[2..4].copy_from_slice(&u16::try_from(self.modulus).expect("moduli have limits").to_le_bytes());
        out[4..8].copy_from_slice(&small(self.count));
        out[8..16].copy_from_slice(&self.id.to_le_bytes());
        out[16..20].copy_from_slice(&small(self.body));
        out
    }

    /// Reads a header. Its sizes fit its kind and the limits, so that a buffer may be allocated for the body.
    ///
    /// # Errors
    /// If it does not, or is malformed.
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES], side: Side) -> Result<Self, Malformed> {
        let number = |range: Range<usize>| {
            u32::from_le_bytes(bytes[range].try_into().expect("four bytes of the header")) as usize
        };
        let kind = Kind::from_number(bytes[0]).ok_or(Malformed)?;
        let status = Status::from_number(bytes[1]).ok_or(Malformed)?;
        let modulus = usize::from(u16::from_le_bytes([bytes[2], bytes[3]]));
        let (count, body) = (number(4..8), number(16..20));
        let id = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes of the header"));
        let header = Self { kind, status, modulus, count, id, body };
        let modulus_fits = if kind == Kind::Rsa { is_modulus(modulus) } else { modulus == 0 };
        if !modulus_fits || bytes[20..] != [0; 4] {
            return Err(Malformed);
        }
        let fits = match (side, status) {
            (Side::Request, Status::Done) => {
                kind.items().contains(&count) && body == count * kind.request_item(modulus)
            }
            (Side::Request, _) => false,
            (Side::Answer, Status::Done) => match kind.answer_item(modulus) {
                Some(item) => kind.items().contains(&count) && body == count * item,
                None => count == 0 && body <= BLOB_BYTES_MAX && body.is_multiple_of(BLOB_BLOCK_BYTES),
            },
            (Side::Answer, _) => count == 0 && body == 0,
        };
        if fits { Ok(header) } else { Err(Malformed) }
    }
}

/// Size of a hello, in bytes.
pub(crate) const HELLO_BYTES: usize = 64;

/// The first frame of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The version that the client wants or the signer speaks.
    pub version: u16,
    /// From the signer: the maximum number of items under way on the connection.
    pub items_max: u32,
    /// From the signer: the version of its listing; 0 if it has no keys yet.
    pub keys_version: u64,
}

impl Hello {
    /// The hello as bytes.
    pub fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&self.version.to_le_bytes());
        out[12..16].copy_from_slice(&self.items_max.to_le_bytes());
        out[16..24].copy_from_slice(&self.keys_version.to_le_bytes());
        out
    }

    /// Reads a hello. Bytes after the known fields belong to later versions.
    ///
    /// # Errors
    /// If it is not a hello.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; HELLO_BYTES] = bytes.try_into().map_err(|_| Malformed)?;
        if bytes[..8] != MAGIC {
            return Err(Malformed);
        }
        Ok(Self {
            version: u16::from_le_bytes([bytes[8], bytes[9]]),
            items_max: u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes of the hello")),
            keys_version: u64::from_le_bytes(bytes[16..24].try_into().expect("eight bytes of the hello")),
        })
    }
}

/// A blob: the content, preceded by its length, padded to whole blocks.
pub(crate) fn pad_blob(content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).expect("blobs have limits");
    let size = (4 + content.len()).next_multiple_of(BLOB_BLOCK_BYTES);
    // Allocated with the final capacity: it may contain private keys, and growing would leave copies behind.
    let mut out = Vec::with_capacity(size);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(content);
    out.resize(size, 0);
    out
}

/// The content of a blob.
///
/// # Errors
/// If the length exceeds the blob.
pub fn open_blob(blob: &[u8]) -> Result<&[u8], Malformed> {
    let (length, rest) = blob.split_first_chunk().ok_or(Malformed)?;
    rest.get(..u32::from_le_bytes(*length) as usize).ok_or(Malformed)
}
