//! Checks an exchange's keys against its master key, and approves its denominations.

use std::fmt::Write as _;

use batzen_crypto::{DenomPublicKey, EddsaPrivateKey, EddsaPublicKey, EddsaSignature, HashCode};
use batzen_http::http_date;
use batzen_protocol::Currency;
use batzen_protocol::api::exchange::{Denomination, DenominationGroup, KeysResponse};
use batzen_protocol::api::offline::{AuditorOperation, SignDenomination};
use batzen_protocol::denominations::DenominationTerms;
use batzen_protocol::signatures::SignedMessage;

use super::OfflineError;

/// A denomination, as the exchange publishes it.
struct Published {
    h_denom_pub: HashCode,
    cipher: &'static str,
    terms: DenominationTerms,
    master_sig: EddsaSignature,
}

impl Published {
    fn new(key: &DenomPublicKey, terms: DenominationTerms, master_sig: EddsaSignature) -> Self {
        Self { h_denom_pub: key.h_denom_pub(), cipher: key.cipher().name(), terms, master_sig }
    }
}

/// All denominations, each once: exchanges list them one by one, grouped by their terms, or both.
fn published(keys: &KeysResponse) -> Result<Vec<Published>, OfflineError> {
    let mut found: Vec<Published> = keys
        .denoms
        .iter()
        .map(|denom| Published::new(&denom.denom_pub, Denomination::terms(denom), denom.master_sig))
        .collect();
    for group in &keys.denominations {
        for member in &group.denoms {
            let key = group.key(member);
            let key = key.ok_or_else(|| OfflineError::Input("a denomination's key is malformed".into()))?;
            found.push(Published::new(&key, DenominationGroup::terms(group, member), member.master_sig));
        }
    }
    let mut seen = std::collections::HashSet::new();
    found.retain(|denom| seen.insert((denom.h_denom_pub, denom.terms)));
    Ok(found)
}

/// Approves every denomination, after checking that the exchange's master key has signed its terms.
///
/// # Errors
/// [`OfflineError::Refused`] for another exchange, another currency, or terms that the master key has not signed.
pub fn approve(
    key: &EddsaPrivateKey,
    auditor_url: &str,
    master_pub: EddsaPublicKey,
    currency: Currency,
    keys: &KeysResponse,
) -> Result<Vec<SignDenomination>, OfflineError> {
    let refuse = |reason: String| Err(OfflineError::Refused(reason));
    if keys.master_public_key != master_pub {
        let other = keys.master_public_key;
        return refuse(format!("the keys are of the exchange {other}, not of {master_pub}"));
    }
    let mut approvals = Vec::new();
    for denom in published(keys)? {
        let Published { h_denom_pub, terms, master_sig, .. } = denom;
        if !terms.validity(master_pub, h_denom_pub).verify(&master_pub, &master_sig) {
            return refuse(format!("the master key has not signed the denomination {h_denom_pub}"));
        }
        let amounts =
            [terms.value, terms.fee_withdraw, terms.fee_deposit, terms.fee_refresh, terms.fee_refund];
        if amounts.iter().any(|amount| amount.currency != currency) {
            return refuse(format!("the denomination {h_denom_pub} is not in {currency}"));
        }
        let auditor_sig = terms.auditor_approval(auditor_url, master_pub, h_denom_pub).sign(key);
        approvals.push(SignDenomination { h_denom_pub, auditor_sig });
    }
    Ok(approvals)
}

/// An operation in words, in whole lines.
#[must_use]
pub(crate) fn describe(operation: &AuditorOperation) -> String {
    match operation {
        AuditorOperation::Setup(setup) => format!("the auditor's public key is {}\n", setup.auditor_pub),
        AuditorOperation::SignDenomination(approval) => {
            format!("approval of the denomination {}\n", approval.h_denom_pub)
        }
        AuditorOperation::Keys(keys) => match published(keys) {
            Ok(denoms) => describe_keys(keys, &denoms),
            Err(error) => format!("{error}\n"),
        },
    }
}

fn describe_keys(keys: &KeysResponse, denoms: &[Published]) -> String {
    let mut text = format!(
        "keys of the exchange {} ({})\nmaster key: {}\n",
        keys.base_url, keys.currency, keys.master_public_key
    );
    for Published { h_denom_pub, cipher, terms, .. } in denoms {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "denomination {h_denom_pub} ({cipher})\n  value {}, fees: withdraw {}, deposit {}, refresh {}, \
             refund {}\n  withdrawn from {} to {}\n  spent until {}, records kept until {}",
            terms.value,
            terms.fee_withdraw,
            terms.fee_deposit,
            terms.fee_refresh,
            terms.fee_refund,
            http_date(terms.stamp_start),
            http_date(terms.stamp_expire_withdraw),
            http_date(terms.stamp_expire_deposit),
            http_date(terms.stamp_expire_legal),
        );
    }
    for key in &keys.signkeys {
        let _ = writeln!(
            text,
            "signing key {}\n  signs from {} to {}, signatures count until {}",
            key.key,
            http_date(key.stamp_start),
            http_date(key.stamp_expire),
            http_date(key.stamp_end)
        );
    }
    text
}
