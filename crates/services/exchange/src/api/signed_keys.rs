//! `POST /management/keys`: keys that the offline master key has signed come into use.
//!
//! Anybody may send this request, and a master signature on a key in use is public. So the work of a request
//! depends on the number of keys and not on its length: each key is checked once, a stored signature is not
//! checked again, and all others are checked on the CPU pool before any lock is taken.

use std::collections::HashMap;
use std::hash::Hash;

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode};
use batzen_http::{Request, Response};
use batzen_protocol::ErrorCode;
use batzen_protocol::api::exchange::ManagementKeysRequest;
use batzen_protocol::api::field_error;
use batzen_tables::exchange::{DenomRow, DenomSerial, SigningKeyRow};

use super::check::Checked;
use super::management::{apply_locked, never};
use super::signing::checked;
use super::{error, large_body, malformed};
use crate::app::Exchange;
use crate::crypto::Check;
use crate::keys::KeyState;
use crate::rules::Management;

/// Number of signatures of one request that are checked at a time, so that requests take turns on the CPU
/// pool.
const CHECKS_AT_ONCE: usize = 256;

/// The endpoint.
pub(super) async fn keys(app: &Exchange, request: &Request) -> Checked<Response> {
    let signed = Signed::of(large_body(request).await?)?;
    signed.check(app, &app.keys()).await?;
    let _one_change = app.management.lock().await;
    // Keys that have come into use since the check need no row.
    let state = app.keys();
    let command = Management::Keys {
        denominations: signed.new_denominations(app, &state)?,
        signing_keys: signed.new_signing_keys(app, &state)?,
    };
    apply_locked(app, command, never).await
}

/// The signatures of a request, one for each key.
struct Signed {
    denominations: HashMap<HashCode, EddsaSignature>,
    signing_keys: HashMap<EddsaPublicKey, EddsaSignature>,
}

/// # Errors
/// 400 for two signatures for one key.
fn unique_by_key<K: Hash + Eq>(
    field: &str,
    signatures: impl ExactSizeIterator<Item = (K, EddsaSignature)>,
) -> Checked<HashMap<K, EddsaSignature>> {
    let refused = |reason: String| malformed(&field_error::<ManagementKeysRequest>(field, reason));
    let mut found = HashMap::with_capacity(signatures.len());
    for (key, signature) in signatures {
        if found.insert(key, signature).is_some_and(|other| other != signature) {
            return Err(refused("two different signatures for one key".into()));
        }
    }
    Ok(found)
}

fn denomination_unknown(h_denom_pub: &HashCode) -> Response {
    error(ErrorCode::EXCHANGE_GENERIC_DENOMINATION_KEY_UNKNOWN, &h_denom_pub.to_string()[..8])
}

fn signing_key_unknown() -> Response {
    error(ErrorCode::EXCHANGE_MANAGEMENT_KEYS_SIGNKEY_UNKNOWN, "")
}

impl Signed {
    fn of(request: ManagementKeysRequest) -> Checked<Self> {
        let denominations =
            request.denom_sigs.into_iter().map(|signed| (signed.h_denom_pub, signed.master_sig));
        let signing_keys =
            request.signkey_sigs.into_iter().map(|signed| (signed.exchange_pub, signed.master_sig));
        Ok(Self {
            denominations: unique_by_key("denom_sigs", denominations)?,
            signing_keys: unique_by_key("signkey_sigs", signing_keys)?,
        })
    }

    /// Checks every signature that is not stored already.
    ///
    /// # Errors
    /// 404 for an unknown key, 403 for a wrong signature, 503 when too much is waiting.
    async fn check(&self, app: &Exchange, state: &KeyState) -> Checked<()> {
        let denominations = self.denomination_checks(app, state)?;
        let signing_keys = self.signing_key_checks(app, state)?;
        all_valid(app, denominations, ErrorCode::EXCHANGE_MANAGEMENT_KEYS_DENOMKEY_ADD_SIGNATURE_INVALID)
            .await?;
        all_valid(app, signing_keys, ErrorCode::EXCHANGE_MANAGEMENT_KEYS_SIGNKEY_ADD_SIGNATURE_INVALID).await
    }

    fn denomination_checks(&self, app: &Exchange, state: &KeyState) -> Checked<Vec<Check>> {
        let master_pub = app.core.master_public_key;
        let mut checks = Vec::new();
        let mut unused = HashMap::new();
        for (h_denom_pub, signature) in &self.denominations {
            match state.find_denomination(h_denom_pub) {
                Some(denom) if denom.master_sig == *signature => {}
                Some(denom) => {
                    let message = denom.validity(master_pub, app.core.config.currency);
                    checks.push(Check::eddsa(master_pub, &message, *signature));
                }
                None => {
                    unused.insert(*h_denom_pub, *signature);
                }
            }
        }
        if unused.is_empty() {
            return Ok(checks);
        }
        for found in state.future_denoms(&app.custody, &app.core.config) {
            if let Some(signature) = unused.remove(&found.row.h_denom_pub) {
                let message = found.announcement.terms().validity(master_pub, found.row.h_denom_pub);
                checks.push(Check::eddsa(master_pub, &message, signature));
            }
        }
        unused.keys().next().map_or(Ok(checks), |unknown| Err(denomination_unknown(unknown)))
    }

    fn signing_key_checks(&self, app: &Exchange, state: &KeyState) -> Checked<Vec<Check>> {
        let master_pub = app.core.master_public_key;
        let mut checks = Vec::new();
        let mut unused = HashMap::new();
        for (exchange_pub, signature) in &self.signing_keys {
            match state.signing_key(exchange_pub) {
                Some(key) if key.master_sig == *signature => {}
                Some(key) => checks.push(Check::eddsa(master_pub, &key.signed().validity(), *signature)),
                None => {
                    unused.insert(*exchange_pub, *signature);
                }
            }
        }
        if unused.is_empty() {
            return Ok(checks);
        }
        for found in state.future_signkeys(&app.custody, &app.core.config) {
            if let Some(signature) = unused.remove(&found.key) {
                checks.push(Check::eddsa(master_pub, &found.validity(), signature));
            }
        }
        if unused.is_empty() { Ok(checks) } else { Err(signing_key_unknown()) }
    }

    /// The rows of the denominations that come into use.
    fn new_denominations(&self, app: &Exchange, state: &KeyState) -> Checked<Vec<(DenomSerial, DenomRow)>> {
        let mut waiting: HashMap<_, _> = self
            .denominations
            .iter()
            .filter(|(h_denom_pub, _)| state.find_denomination(h_denom_pub).is_none())
            .collect();
        if waiting.is_empty() {
            return Ok(Vec::new());
        }
        let mut rows: Vec<_> = state
            .future_denoms(&app.custody, &app.core.config)
            .into_iter()
            .filter_map(|found| {
                let master_sig = *waiting.remove(&found.row.h_denom_pub)?;
                Some((DenomSerial(0), DenomRow { master_sig, ..found.row }))
            })
            .collect();
        if let Some(gone) = waiting.keys().next() {
            return Err(denomination_unknown(gone));
        }
        // Numbers follow the order of time: older keys get lower ones, whatever the order of the request.
        rows.sort_by_key(|(_, row)| (row.start, row.h_denom_pub));
        let first = u32::try_from(state.denoms().len()).expect("serials are 32 bits wide") + 1;
        for (serial, (slot, _)) in (first..).zip(&mut rows) {
            *slot = DenomSerial(serial);
        }
        Ok(rows)
    }

    /// The rows of the signing keys that come into use.
    fn new_signing_keys(
        &self,
        app: &Exchange,
        state: &KeyState,
    ) -> Checked<Vec<(EddsaPublicKey, SigningKeyRow)>> {
        let mut waiting: HashMap<_, _> = self
            .signing_keys
            .iter()
            .filter(|(exchange_pub, _)| state.signing_key(exchange_pub).is_none())
            .collect();
        if waiting.is_empty() {
            return Ok(Vec::new());
        }
        let rows = state
            .future_signkeys(&app.custody, &app.core.config)
            .into_iter()
            .filter_map(|found| {
                let master_sig = *waiting.remove(&found.key)?;
                let row = SigningKeyRow {
                    start: found.stamp_start,
                    expire: found.stamp_expire,
                    end: found.stamp_end,
                    master_sig,
                    revoked: None,
                };
                Some((found.key, row))
            })
            .collect();
        if waiting.is_empty() { Ok(rows) } else { Err(signing_key_unknown()) }
    }
}

/// # Errors
/// `invalid` unless all signatures are valid, 503 when too much is waiting.
async fn all_valid(app: &Exchange, checks: Vec<Check>, invalid: ErrorCode) -> Checked<()> {
    let mut checks = checks.into_iter();
    loop {
        let turn: Vec<_> = checks.by_ref().take(CHECKS_AT_ONCE).collect();
        if turn.is_empty() {
            return Ok(());
        }
        if checked(app, turn).await?.contains(&false) {
            return Err(error(invalid, ""));
        }
    }
}
