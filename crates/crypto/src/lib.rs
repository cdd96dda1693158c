//! Cryptographic primitives: hashes, KDFs, Ed25519, X25519, blind RSA, Clause Blind Schnorr, age commitments, base32.
