//! Signs with the master key, and describes what is signed.

use std::fmt::Write as _;

use batzen_crypto::denom::Cipher;
use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, HashCode, Wtid};
use batzen_http::http_date;
use batzen_protocol::api::exchange::{
    DenominationSignature, ExtensionsRequest, FutureKeys, SignKeySignature,
};
use batzen_protocol::api::offline::{
    DisableAuditor, DisableWire, DrainProfits, EnableAuditor, EnableWire, OfflineOperation,
    RevokeDenomination, RevokeSignKey, SetGlobalFee, SetWireFee, UploadSigs,
};
use batzen_protocol::payto::{PaytoUri, h_payto};
use batzen_protocol::signatures::{
    MasterAddAuditor, MasterAddWire, MasterDelAuditor, MasterDelWire, MasterDenominationKeyRevoked,
    MasterDrainProfit, MasterExtension, MasterGlobalFees, MasterSigningKeyRevoked, MasterWireDetails,
    MasterWireFees, SignedMessage, SmCsDenominationKey, SmRsaDenominationKey, SmSigningKey,
};
use batzen_protocol::time::{year_of, year_start};
use batzen_protocol::{Amount, Currency, Timestamp, canonical, hash_text};

use super::OfflineError;
use super::commands::GlobalFeeTerms;
use crate::config::AgeRestrictionConfig;

/// Checks that every announced key comes from its security module, and signs them all.
///
/// # Errors
/// [`OfflineError::Refused`] for keys of another exchange, or keys that their module has not signed.
pub fn sign_keys(master: &EddsaPrivateKey, keys: &FutureKeys) -> Result<UploadSigs, OfflineError> {
    let master_pub = master.public_key();
    if keys.master_pub != master_pub {
        let reason =
            format!("the exchange is configured for the master key {}, not {master_pub}", keys.master_pub);
        return Err(OfflineError::Refused(reason));
    }
    let mut denom_sigs = Vec::with_capacity(keys.future_denoms.len());
    for denom in &keys.future_denoms {
        let (h_key, h_section_name) = (denom.denom_pub.h_key(), hash_text(&denom.section_name));
        let anchor_time = denom.stamp_start;
        let duration_withdraw = denom.stamp_expire_withdraw.saturating_since(anchor_time);
        let is_announced = match denom.denom_pub.cipher() {
            Cipher::Rsa => {
                SmRsaDenominationKey { h_rsa: h_key, h_section_name, anchor_time, duration_withdraw }
                    .verify(&keys.denom_secmod_public_key, &denom.denom_secmod_sig)
            }
            Cipher::Cs => SmCsDenominationKey { h_cs: h_key, h_section_name, anchor_time, duration_withdraw }
                .verify(&keys.denom_secmod_cs_public_key, &denom.denom_secmod_sig),
        };
        if !is_announced {
            let reason = format!("a key of {} is not signed by the security module", denom.section_name);
            return Err(OfflineError::Refused(reason));
        }
        let in_order = denom.stamp_start < denom.stamp_expire_withdraw
            && denom.stamp_expire_withdraw <= denom.stamp_expire_deposit
            && denom.stamp_expire_deposit <= denom.stamp_expire_legal;
        if !in_order {
            let reason = format!("the times of a key of {} are not in order", denom.section_name);
            return Err(OfflineError::Refused(reason));
        }
        let h_denom_pub = denom.denom_pub.h_denom_pub();
        let master_sig = denom.terms().validity(master_pub, h_denom_pub).sign(master);
        denom_sigs.push(DenominationSignature { h_denom_pub, master_sig });
    }
    let mut signkey_sigs = Vec::with_capacity(keys.future_signkeys.len());
    for key in &keys.future_signkeys {
        let announcement = SmSigningKey {
            exchange_pub: key.key,
            anchor_time: key.stamp_start,
            duration: key.stamp_expire.saturating_since(key.stamp_start),
        };
        if !announcement.verify(&keys.signkey_secmod_public_key, &key.signkey_secmod_sig) {
            let reason = format!("the signing key {} is not signed by the security module", key.key);
            return Err(OfflineError::Refused(reason));
        }
        let master_sig = key.validity().sign(master);
        signkey_sigs.push(SignKeySignature { exchange_pub: key.key, master_sig });
    }
    Ok(UploadSigs { denom_sigs, signkey_sigs })
}

/// Publishes a bank account.
///
/// # Errors
/// [`OfflineError::Input`] for an invalid payto URI.
pub fn enable_wire(
    master: &EddsaPrivateKey,
    payto_uri: &str,
    now: Timestamp,
) -> Result<OfflineOperation, OfflineError> {
    PaytoUri::parse(payto_uri).map_err(|reason| OfflineError::Input(format!("{payto_uri}: {reason}")))?;
    let h_payto = h_payto(payto_uri);
    Ok(OfflineOperation::EnableWire(EnableWire {
        payto_uri: payto_uri.to_owned(),
        validity_start: now,
        master_sig_add: MasterAddWire { start_date: now, h_payto }.sign(master),
        master_sig_wire: MasterWireDetails { h_wire_details: h_payto }.sign(master),
    }))
}

/// Withdraws a bank account.
pub fn disable_wire(master: &EddsaPrivateKey, payto_uri: &str, now: Timestamp) -> OfflineOperation {
    let message = MasterDelWire { end_date: now, h_payto: h_payto(payto_uri) };
    let master_sig = message.sign(master);
    OfflineOperation::DisableWire(DisableWire {
        payto_uri: payto_uri.to_owned(),
        validity_end: now,
        master_sig,
    })
}

/// Publishes an auditor.
pub fn enable_auditor(
    master: &EddsaPrivateKey,
    auditor_pub: EddsaPublicKey,
    url: &str,
    name: &str,
    now: Timestamp,
) -> OfflineOperation {
    let message = MasterAddAuditor { start_date: now, auditor_pub, h_auditor_url: hash_text(url) };
    OfflineOperation::EnableAuditor(EnableAuditor {
        auditor_url: url.to_owned(),
        auditor_name: name.to_owned(),
        auditor_pub,
        validity_start: now,
        master_sig: message.sign(master),
    })
}

/// Withdraws an auditor.
pub fn disable_auditor(
    master: &EddsaPrivateKey,
    auditor_pub: EddsaPublicKey,
    now: Timestamp,
) -> OfflineOperation {
    let master_sig = MasterDelAuditor { end_date: now, auditor_pub }.sign(master);
    OfflineOperation::DisableAuditor(DisableAuditor { auditor_pub, validity_end: now, master_sig })
}

/// The start and the end of a calendar year (UTC); the current year if none is given.
///
/// # Errors
/// [`OfflineError::Input`] for a year that no timestamp can express.
pub(crate) fn year(which: Option<u64>, now: Timestamp) -> Result<(Timestamp, Timestamp), OfflineError> {
    let bad = || OfflineError::Input("the year must be between 1970 and 9998".into());
    let year = which.or_else(|| year_of(now)).filter(|year| (1970..9999).contains(year)).ok_or_else(bad)?;
    Ok((year_start(year), year_start(year + 1)))
}

fn in_currency(amount: Amount, currency: Currency) -> Result<Amount, OfflineError> {
    if amount.currency == currency {
        Ok(amount)
    } else {
        Err(OfflineError::Input(format!("{amount}: the exchange's currency is {}", currency.as_str())))
    }
}

/// Sets the fees of a wire method for a period.
///
/// # Errors
/// [`OfflineError::Input`] for another currency.
pub fn wire_fee(
    master: &EddsaPrivateKey,
    currency: Currency,
    (start_time, end_time): (Timestamp, Timestamp),
    method: &str,
    wire_fee: Amount,
    closing_fee: Amount,
) -> Result<OfflineOperation, OfflineError> {
    let message = MasterWireFees {
        h_wire_method: hash_text(method),
        start_date: start_time,
        end_date: end_time,
        wire_fee: in_currency(wire_fee, currency)?,
        closing_fee: in_currency(closing_fee, currency)?,
    };
    Ok(OfflineOperation::SetWireFee(SetWireFee {
        wire_method: method.to_owned(),
        start_time,
        end_time,
        wire_fee,
        closing_fee,
        master_sig: message.sign(master),
    }))
}

/// Sets the global fees for a period.
///
/// # Errors
/// [`OfflineError::Input`] for another currency.
pub fn global_fee(
    master: &EddsaPrivateKey,
    currency: Currency,
    (start_time, end_time): (Timestamp, Timestamp),
    terms: &GlobalFeeTerms,
) -> Result<OfflineOperation, OfflineError> {
    let message = MasterGlobalFees {
        start_date: start_time,
        end_date: end_time,
        purse_timeout: terms.purse_timeout,
        history_expiration: terms.history_expiration,
        history_fee: in_currency(terms.history_fee, currency)?,
        account_fee: in_currency(terms.account_fee, currency)?,
        purse_fee: in_currency(terms.purse_fee, currency)?,
        purse_account_limit: terms.purse_account_limit,
    };
    Ok(OfflineOperation::SetGlobalFee(SetGlobalFee {
        start_time,
        end_time,
        history_fee: terms.history_fee,
        account_fee: terms.account_fee,
        purse_fee: terms.purse_fee,
        purse_timeout: terms.purse_timeout,
        history_expiration: terms.history_expiration,
        purse_account_limit: terms.purse_account_limit,
        master_sig: message.sign(master),
    }))
}

/// Revokes a denomination.
pub fn revoke_denomination(master: &EddsaPrivateKey, h_denom_pub: HashCode) -> OfflineOperation {
    let master_sig = MasterDenominationKeyRevoked { h_denom_pub }.sign(master);
    OfflineOperation::RevokeDenomination(RevokeDenomination { h_denom_pub, master_sig })
}

/// Revokes an online signing key.
pub fn revoke_signkey(master: &EddsaPrivateKey, exchange_pub: EddsaPublicKey) -> OfflineOperation {
    let master_sig = MasterSigningKeyRevoked { signkey_pub: exchange_pub }.sign(master);
    OfflineOperation::RevokeSignKey(RevokeSignKey { exchange_pub, master_sig })
}

/// Orders a payment of profit.
///
/// # Errors
/// [`OfflineError::Input`] for another currency or an invalid payto URI.
pub fn drain(
    master: &EddsaPrivateKey,
    currency: Currency,
    amount: Amount,
    section: &str,
    payto_uri: &str,
    now: Timestamp,
) -> Result<OfflineOperation, OfflineError> {
    PaytoUri::parse(payto_uri).map_err(|reason| OfflineError::Input(format!("{payto_uri}: {reason}")))?;
    let wtid = Wtid::random();
    let message = MasterDrainProfit {
        wtid,
        date: now,
        amount: in_currency(amount, currency)?,
        h_section: hash_text(section),
        h_payto: h_payto(payto_uri),
    };
    Ok(OfflineOperation::DrainProfits(DrainProfits {
        wtid,
        account_section: section.to_owned(),
        payto_uri: payto_uri.to_owned(),
        amount,
        date: now,
        master_sig: message.sign(master),
    }))
}

/// Publishes the enabled extensions.
///
/// # Errors
/// [`OfflineError::Input`] when none is enabled.
pub(crate) fn extensions(
    master: &EddsaPrivateKey,
    enabled: Option<&AgeRestrictionConfig>,
) -> Result<OfflineOperation, OfflineError> {
    let enabled = enabled.ok_or_else(|| OfflineError::Input("no extension is enabled".into()))?;
    let extensions = enabled.manifests();
    let h_manifests = canonical::manifests_hash(&extensions).expect("our own manifests are canonical JSON");
    let extensions_sig = MasterExtension { h_manifests }.sign(master);
    Ok(OfflineOperation::Extensions(ExtensionsRequest { extensions, extensions_sig }))
}

/// One line that describes an operation.
pub(super) fn title(operation: &OfflineOperation) -> String {
    match operation {
        OfflineOperation::InputKeys(keys) => {
            let (denoms, signkeys) = (keys.future_denoms.len(), keys.future_signkeys.len());
            format!("{denoms} denomination keys and {signkeys} signing keys to be signed")
        }
        OfflineOperation::UploadSigs(sigs) => {
            let (denoms, signkeys) = (sigs.denom_sigs.len(), sigs.signkey_sigs.len());
            format!("signatures for {denoms} denomination keys and {signkeys} signing keys")
        }
        OfflineOperation::RevokeDenomination(it) => {
            format!("REVOKES the denomination {} for ever", it.h_denom_pub)
        }
        OfflineOperation::RevokeSignKey(it) => {
            format!("REVOKES the signing key {} for ever", it.exchange_pub)
        }
        OfflineOperation::EnableAuditor(it) => {
            format!("auditor {} ({}) at {} is published", it.auditor_name, it.auditor_pub, it.auditor_url)
        }
        OfflineOperation::DisableAuditor(it) => format!("auditor {} is withdrawn", it.auditor_pub),
        OfflineOperation::EnableWire(it) => format!("bank account {} is published", it.payto_uri),
        OfflineOperation::DisableWire(it) => format!("bank account {} is withdrawn", it.payto_uri),
        OfflineOperation::SetWireFee(it) => format!(
            "fees of wire method {}: {} a transfer, {} for closing a reserve, from {} to {}",
            it.wire_method,
            it.wire_fee,
            it.closing_fee,
            http_date(it.start_time),
            http_date(it.end_time)
        ),
        OfflineOperation::SetGlobalFee(it) => format!(
            "global fees: history {}, account {} a year, purse {} beyond {} free ones, from {} to {}",
            it.history_fee,
            it.account_fee,
            it.purse_fee,
            it.purse_account_limit,
            http_date(it.start_time),
            http_date(it.end_time)
        ),
        OfflineOperation::DrainProfits(it) => {
            format!("{} of profit is paid from [{}] to {}", it.amount, it.account_section, it.payto_uri)
        }
        OfflineOperation::Extensions(it) => format!("extensions: {}", it.extensions),
        OfflineOperation::Setup(it) => format!("the master public key is {}", it.exchange_offline_pub),
    }
}

/// A description of an operation, with every key that it affects.
pub(super) fn describe(operation: &OfflineOperation) -> String {
    let mut text = title(operation);
    let OfflineOperation::InputKeys(keys) = operation else { return text };
    // Writing to a string cannot fail.
    let _ = write!(text, "\nmaster key: {}", keys.master_pub);
    for denom in &keys.future_denoms {
        let cipher = denom.denom_pub.cipher().name();
        let age = if denom.denom_pub.age_mask == 0 { "" } else { ", age-restricted" };
        let _ = write!(
            text,
            "\ndenomination {} ({cipher}{age}) of {}\n  value {}, fees: withdraw {}, deposit {}, refresh {}, refund {}\n  \
             withdrawn from {} to {}\n  spent until {}, records kept until {}",
            denom.denom_pub.h_denom_pub(),
            denom.section_name,
            denom.value,
            denom.fee_withdraw,
            denom.fee_deposit,
            denom.fee_refresh,
            denom.fee_refund,
            http_date(denom.stamp_start),
            http_date(denom.stamp_expire_withdraw),
            http_date(denom.stamp_expire_deposit),
            http_date(denom.stamp_expire_legal),
        );
    }
    for key in &keys.future_signkeys {
        let _ = write!(
            text,
            "\nsigning key {}\n  signs from {} to {}, signatures count until {}",
            key.key,
            http_date(key.stamp_start),
            http_date(key.stamp_expire),
            http_date(key.stamp_end)
        );
    }
    text
}
