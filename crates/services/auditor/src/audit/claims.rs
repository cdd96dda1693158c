//! Signatures that rows claim to be valid, verified in batches.

use std::ops::Range;

use batzen_crypto::denom;
use batzen_crypto::{DenomPublicKey, DenomSignature, EddsaPublicKey, EddsaSignature, HashCode, eddsa};
use batzen_protocol::signatures::SignedMessage;
use batzen_store::TableDef;

use crate::audit::finding::{Finding, RowName, Rule};

/// Where a signature comes from, and what it moved.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) table: &'static TableDef,
    pub(crate) serial: u64,
    /// The row's key.
    pub(crate) key: &'a [u8],
}

struct Claim {
    rule: Rule,
    table: &'static TableDef,
    serial: u64,
    key: Range<usize>,
    loss: u128,
}

/// The signatures of a batch of rows.
#[derive(Default)]
pub(crate) struct Claims {
    bytes: Vec<u8>,
    messages: Vec<(EddsaPublicKey, Range<usize>, EddsaSignature)>,
    claims: Vec<Claim>,
    coins: Vec<(DenomPublicKey, HashCode, DenomSignature)>,
    coin_claims: Vec<(Claim, EddsaPublicKey)>,
}

impl Claims {
    fn keep(&mut self, bytes: &[u8]) -> Range<usize> {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        from..self.bytes.len()
    }

    fn claim(&mut self, rule: Rule, origin: Origin<'_>, loss: u128) -> Claim {
        let key = self.keep(origin.key);
        Claim { rule, table: origin.table, serial: origin.serial, key, loss }
    }

    /// An Ed25519 signature.
    pub(super) fn signature(
        &mut self,
        rule: Rule,
        origin: Origin<'_>,
        loss: u128,
        signer: EddsaPublicKey,
        message: &impl SignedMessage,
        signature: EddsaSignature,
    ) {
        let claim = self.claim(rule, origin, loss);
        let message = self.keep(message.message().as_ref());
        self.messages.push((signer, message, signature));
        self.claims.push(claim);
    }

    /// A denomination's signature on a coin.
    pub(super) fn coin(
        &mut self,
        origin: Origin<'_>,
        loss: u128,
        coin_pub: EddsaPublicKey,
        h_coin_pub: HashCode,
        public: DenomPublicKey,
        signature: DenomSignature,
    ) {
        let claim = self.claim(Rule::CoinSignature, origin, loss);
        self.coins.push((public, h_coin_pub, signature));
        self.coin_claims.push((claim, coin_pub));
    }

    /// Their number.
    pub(super) fn len(&self) -> u64 {
        (self.messages.len() + self.coins.len()) as u64
    }

    fn finding(&self, claim: &Claim, subject: &EddsaPublicKey) -> Finding {
        let row = RowName::new(claim.table, claim.serial, &self.bytes[claim.key.clone()]);
        Finding::new(claim.rule, row).about(subject.as_bytes()).risking(claim.loss)
    }

    /// Verifies all of them.
    pub(super) fn verify(&self) -> Vec<Finding> {
        let messages: Vec<_> = self
            .messages
            .iter()
            .map(|(signer, message, signature)| (signer, &self.bytes[message.clone()], signature))
            .collect();
        let verdicts = eddsa::verify_batch(&messages);
        let forged = verdicts.iter().zip(&self.claims).zip(&self.messages).filter(|((valid, _), _)| !**valid);
        let mut findings: Vec<_> =
            forged.map(|((_, claim), (signer, ..))| self.finding(claim, signer)).collect();
        let coins: Vec<_> =
            self.coins.iter().map(|(public, hash, signature)| (public, hash, signature)).collect();
        let verdicts = denom::verify_batch(&coins);
        let forged = verdicts.iter().zip(&self.coin_claims).filter(|(valid, _)| !**valid);
        findings.extend(forged.map(|(_, (claim, coin_pub))| self.finding(claim, coin_pub)));
        findings
    }
}
