//! Planchets: pure functions from secrets and public values to requests, and from signatures to coins.
//!
//! Load generators and other wallets can use them; they need no records.

use batzen_crypto::{
    BlindedDenomSignature, BlindedPlanchet, BlindingSecret, CoinSecrets, CsNonce, DenomSignature,
    EddsaPrivateKey, EddsaPublicKey, ExchangeWithdrawValues, HashCode, PlanchetMasterSecret, ShortHash,
    UnblindState, kdf,
};
use batzen_protocol::Currency;
use batzen_protocol::signatures::{SignedMessage, WalletReserveWithdraw};

use super::CoreError;
use super::coin::CsSession;
use super::exchange::Denom;
use crate::core::error::Result;
use batzen_protocol::api::exchange::WithdrawRequest;

/// A coin before the exchange has signed it.
#[derive(Clone, Debug)]
pub(crate) struct Planchet {
    /// Private key of the future coin.
    pub(crate) coin_priv: EddsaPrivateKey,
    pub(crate) coin_pub: EddsaPublicKey,
    pub(crate) blinding: BlindingSecret,
    /// Blinded message for the exchange.
    pub(crate) blinded: BlindedPlanchet,
    pub(crate) h_coin_ev: HashCode,
    /// State for unblinding the signature.
    pub(crate) unblind_state: UnblindState,
}

impl Planchet {
    /// Blinds a coin for `denom`, with the hash of its age commitment if it has one.
    ///
    /// # Errors
    /// If the denomination's key or the R values would mark coins, or the ciphers do not match.
    pub(crate) fn new(
        secrets: CoinSecrets,
        denom: &Denom,
        cs: Option<&CsSession>,
        h_age: Option<&ShortHash>,
    ) -> Result<Self> {
        let values = withdraw_values(cs);
        let coin_pub = secrets.coin_pub();
        let nonce = cs.map(|session| session.nonce);
        let (blinded, unblind_state) = batzen_crypto::denom::prepare_planchet(
            &denom.key,
            &values,
            nonce.as_ref(),
            &coin_pub,
            &secrets.blinding,
            h_age,
        )?;
        Ok(Self {
            h_coin_ev: blinded.hash(&denom.h_denom_pub),
            coin_priv: secrets.coin_priv,
            coin_pub,
            blinding: secrets.blinding,
            blinded,
            unblind_state,
        })
    }

    /// Unblinds and verifies the exchange's signature.
    ///
    /// # Errors
    /// [`CoreError::BadSignature`].
    pub(crate) fn unblind(&self, blind: &BlindedDenomSignature) -> Result<DenomSignature> {
        self.unblind_state
            .unblind(blind)
            .map_err(|_| CoreError::BadSignature { what: "the exchange's blind signature of a coin" })
    }
}

/// The exchange's first message in the form that the cryptography uses.
#[must_use]
pub(crate) fn withdraw_values(cs: Option<&CsSession>) -> ExchangeWithdrawValues {
    cs.map_or(ExchangeWithdrawValues::Rsa, |session| ExchangeWithdrawValues::Cs {
        r0: session.r_0,
        r1: session.r_1,
    })
}

/// The master secret of Clause-Schnorr coin number `index` of a withdrawal.
fn master_secret(seed: &PlanchetMasterSecret, index: u32) -> PlanchetMasterSecret {
    let info: [&[u8]; 1] = [b"batzen-withdrawal-planchet"];
    PlanchetMasterSecret::from_bytes(kdf::kdf_array(&index.to_be_bytes(), seed.as_bytes(), &info))
}

/// The nonce of coin number `index` of a withdrawal, for Clause-Schnorr.
#[must_use]
pub(crate) fn withdraw_nonce(seed: &PlanchetMasterSecret, index: u32) -> CsNonce {
    master_secret(seed, index).cs_nonce()
}

/// Derives coin number `index` of a withdrawal. RSA coins derive as in other wallets of this protocol.
///
/// # Errors
/// As [`Planchet::new`].
pub(crate) fn withdraw_planchet(
    seed: &PlanchetMasterSecret,
    index: u32,
    denom: &Denom,
    cs: Option<&CsSession>,
    h_age: Option<&ShortHash>,
) -> Result<Planchet> {
    let secrets = match cs {
        None => CoinSecrets::from_withdrawal_seed(seed.as_bytes(), index),
        Some(_) => CoinSecrets::from_master(&master_secret(seed, index), &withdraw_values(cs)),
    };
    Planchet::new(secrets, denom, cs, h_age)
}

/// The signed request that withdraws one coin from a reserve.
///
/// # Errors
/// If the sum of value and fee overflows.
pub(crate) fn withdraw_request(
    reserve_priv: &EddsaPrivateKey,
    currency: Currency,
    denom: &Denom,
    planchet: &Planchet,
) -> Result<WithdrawRequest> {
    let message = WalletReserveWithdraw {
        amount_with_fee: denom.value.checked_add(denom.fee_withdraw)?.of(currency),
        h_denom_pub: denom.h_denom_pub,
        h_coin_envelope: planchet.h_coin_ev,
    };
    Ok(WithdrawRequest {
        reserve_sig: message.sign(reserve_priv),
        denom_pub_hash: denom.h_denom_pub,
        coin_ev: planchet.blinded.clone(),
    })
}
