//! The signing keys of exchanges that a backend remembers, for its operator.

use std::sync::Arc;

use batzen_crypto::EddsaPublicKey;
use batzen_engine::Batcher;
use batzen_service::storage::MERCHANT;
use batzen_tables::merchant::ExchangeSignkeys;
pub use batzen_tables::merchant::{ExchangeSignkeyKey, ExchangeSignkeyRow};

use crate::rules::{ForgetSignkeys, MerchantRules, TypedCommand as _};
use crate::{MerchantConfig, MerchantError};

/// Reads the keys of all exchanges, in the order of their master keys.
///
/// # Errors
/// [`MerchantError::Store`].
pub fn remembered(
    config: &MerchantConfig,
) -> Result<Vec<(ExchangeSignkeyKey, ExchangeSignkeyRow)>, MerchantError> {
    let store = config.store.open_to_read(&MERCHANT)?;
    let found = store.all::<ExchangeSignkeys>()?;
    store.close()?;
    let mut keys: Vec<_> = found.into_iter().map(|found| (found.key, found.row)).collect();
    keys.sort_by_key(|(key, row)| (key.master_pub, row.first_seen));
    Ok(keys)
}

/// Forgets the keys of an exchange, so that its next list counts as the first. Returns their number.
///
/// # Errors
/// [`MerchantError::Store`]; a store in a directory must not be in use.
pub fn forget(config: &MerchantConfig, master_pub: EddsaPublicKey) -> Result<usize, MerchantError> {
    let store = config.store.open(&MERCHANT, 1)?;
    let batcher = Batcher::new(Arc::new(MerchantRules::default()), store.clone());
    let mut verdicts = batcher.run(&[ForgetSignkeys { master_pub }.into()], &*config.clock)?;
    let forgotten = verdicts.remove(0).map(ForgetSignkeys::answer).map_err(MerchantError::Other)?;
    drop(batcher);
    store.close()?;
    Ok(forgotten)
}
