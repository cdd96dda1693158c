//! The proof with which an exchange refuses a double spend: all operations of the coin, signed by its owner.

use anyhow::{bail, ensure};
use batzen_crypto::{EddsaPublicKey, HashCode, ShortHash};
use batzen_protocol::api::errors::CoinConflict;
use batzen_protocol::api::exchange::CoinHistoryItem;
use batzen_protocol::signatures::{MerchantRefund, SignedMessage, WalletCoinDeposit, WalletCoinMelt};
use batzen_protocol::{Money, Timestamp};

const NO_AGE: ShortHash = ShortHash::from_bytes([0; 32]);
const NO_POLICY: HashCode = HashCode::from_bytes([0; 64]);

/// Checks every signature in a proof about a coin of `value`, and sums it up. Returns the amount left on the
/// coin.
///
/// # Errors
/// A signature that does not verify, a proof about another coin, impossible sums, or an event that does not
/// occur here.
pub(crate) fn remaining(
    conflict: &CoinConflict,
    coin_pub: &EddsaPublicKey,
    value: Money,
) -> anyhow::Result<Money> {
    ensure!(conflict.coin_pub == *coin_pub, "the proof is about another coin");
    ensure!(!conflict.history.is_empty(), "the proof is empty");
    let h_denom_pub = conflict.h_denom_pub;
    let mut spent = Money::ZERO;
    let mut back = Money::ZERO;
    for item in &conflict.history {
        let is_signed = match item {
            CoinHistoryItem::Deposit(deposit) => {
                spent = spent.checked_add(deposit.amount.money)?;
                WalletCoinDeposit {
                    h_contract_terms: deposit.h_contract_terms,
                    h_age_commitment: deposit.h_age_commitment.unwrap_or(NO_AGE),
                    h_policy: deposit.h_policy.unwrap_or(NO_POLICY),
                    h_wire: deposit.h_wire,
                    h_denom_pub,
                    wallet_timestamp: deposit.timestamp,
                    refund_deadline: deposit.refund_deadline.unwrap_or(Timestamp::ZERO),
                    amount_with_fee: deposit.amount,
                    deposit_fee: deposit.deposit_fee,
                    merchant_pub: deposit.merchant_pub,
                }
                .verify(coin_pub, &deposit.coin_sig)
            }
            CoinHistoryItem::Melt(melt) => {
                spent = spent.checked_add(melt.amount.money)?;
                WalletCoinMelt {
                    refresh_commitment: melt.rc,
                    h_denom_pub,
                    h_age_commitment: melt.h_age_commitment.unwrap_or(NO_AGE),
                    amount_with_fee: melt.amount,
                    melt_fee: melt.melt_fee,
                }
                .verify(coin_pub, &melt.coin_sig)
            }
            CoinHistoryItem::Refund(refund) => {
                back = back.checked_add(refund.amount.money)?;
                MerchantRefund {
                    h_contract_terms: refund.h_contract_terms,
                    coin_pub: *coin_pub,
                    rtransaction_id: refund.rtransaction_id,
                    // The merchant signed the amount before the fee.
                    refund_amount: refund.amount.checked_add(&refund.refund_fee)?,
                }
                .verify(&refund.merchant_pub, &refund.merchant_sig)
            }
            other => bail!("the proof has an event that this coin never had: {other:?}"),
        };
        ensure!(is_signed, "an event in the proof is not signed by the one who caused it");
    }
    ensure!(spent <= value.checked_add(back)?, "the proof says that more was spent than there was");
    Ok(value.checked_add(back)?.checked_sub(spent)?)
}
