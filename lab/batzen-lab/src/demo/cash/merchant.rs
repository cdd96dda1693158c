//! A merchant: a key pair, a bank account and a salt. It makes contracts, checks receipts, refunds, and
//! traces its money.

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};
use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, HashCode, WireSalt, Wtid};
use batzen_http::client::Client;
use batzen_protocol::api::exchange::{DepositPending, DepositTransfer, TransferResponse};
use batzen_protocol::canonical::contract_hash;
use batzen_protocol::denominations::wire_details_hash;
use batzen_protocol::payto::{h_payto, h_wire};
use batzen_protocol::signatures::{
    ExchangeConfirmDeposit, ExchangeConfirmWire, ExchangeConfirmWireDeposit, MerchantRefund,
    MerchantTrackTransaction, SignedMessage,
};
use batzen_protocol::{Amount, Duration, Money, PaytoUri, Timestamp};
use batzen_service::wire_gateway::OutgoingTransaction;
use batzen_wallet::{Exchange, PaymentReceipt, PaymentRequest, RefundPermission};
use serde_json::json;

#[derive(Clone)]
pub(crate) struct Merchant {
    key: EddsaPrivateKey,
    pub(crate) key_pub: EddsaPublicKey,
    account: String,
    /// Its bank account.
    pub(crate) payto: String,
    wire_salt: WireSalt,
}

#[derive(Clone, Debug)]
pub(crate) struct Sale {
    /// The payment request for the wallet.
    pub(crate) request: PaymentRequest,
}

/// A sale that was paid.
#[derive(Clone, Debug)]
pub(crate) struct Paid {
    pub(crate) sale: Sale,
    /// The exchange's confirmations.
    pub(crate) receipt: PaymentReceipt,
    /// The refunded amount of each coin, refund fee included.
    pub(crate) refunded: BTreeMap<EddsaPublicKey, Money>,
}

impl Merchant {
    /// A merchant with its keys.
    pub(crate) fn new(key: EddsaPrivateKey, wire_salt: WireSalt, hostname: &str) -> Self {
        let account = "merchant".to_owned();
        let payto = format!("payto://x-taler-bank/{hostname}/{account}?receiver-name={account}");
        Self { key_pub: key.public_key(), key, account, payto, wire_salt }
    }

    /// The name of its bank account.
    pub(crate) fn account(&self) -> &str {
        &self.account
    }

    /// The salted hash of its bank account.
    pub(crate) fn h_wire(&self) -> HashCode {
        h_wire(&self.payto, &self.wire_salt)
    }

    /// Makes an offer. It can be refunded until `refundable_until`; at that time, or soon after, the exchange
    /// pays.
    pub(crate) fn sell(
        &self,
        exchange: &str,
        amount: Amount,
        what: &str,
        refundable_until: Timestamp,
    ) -> anyhow::Result<Sale> {
        let contract = json!({
            "amount": amount,
            "summary": what,
            "merchant_pub": self.key_pub,
            "h_wire": self.h_wire(),
            "nonce": HashCode::random(),
            "refund_deadline": refundable_until,
            "wire_transfer_deadline": refundable_until,
        });
        let request = PaymentRequest {
            exchange: Some(exchange.to_owned()),
            amount,
            // The merchant bears small deposit fees, as merchants do.
            max_fee: Money::new(0, 500_000)?,
            merchant_pub: self.key_pub,
            merchant_payto: self.payto.clone(),
            wire_salt: self.wire_salt,
            h_contract_terms: contract_hash(&contract)?,
            timestamp: None,
            refund_deadline: refundable_until,
            wire_transfer_deadline: refundable_until,
            summary: what.to_owned(),
        };
        Ok(Sale { request })
    }

    /// Checks a receipt: confirmed by a signing key of the exchange, for this contract and account, for the
    /// whole price.
    pub(crate) fn check(
        &self,
        sale: Sale,
        receipt: PaymentReceipt,
        exchange: &Exchange,
        now: Timestamp,
    ) -> anyhow::Result<Paid> {
        exchange.require_signing_key(&receipt.exchange_pub, now)?;
        let mut gross = Money::ZERO;
        for coin in &receipt.coins {
            let confirmation = ExchangeConfirmDeposit {
                h_contract_terms: sale.request.h_contract_terms,
                h_wire: self.h_wire(),
                h_policy: HashCode::from_bytes([0; 64]),
                exchange_timestamp: receipt.exchange_timestamp,
                wire_deadline: sale.request.wire_transfer_deadline,
                refund_deadline: sale.request.refund_deadline,
                amount_without_fee: coin.contribution.checked_sub(&coin.deposit_fee)?,
                coin_pub: coin.coin_pub,
                merchant_pub: self.key_pub,
            };
            ensure!(
                confirmation.verify(&receipt.exchange_pub, &coin.exchange_sig),
                "a confirmation is not signed by the exchange"
            );
            gross = gross.checked_add(coin.contribution.money)?;
        }
        let fees = Money::checked_sum(receipt.coins.iter().map(|coin| coin.deposit_fee.money))?;
        let borne = fees.min(sale.request.max_fee);
        ensure!(
            gross.checked_sub(fees)?.checked_add(borne)? >= sale.request.amount.money,
            "less was paid than the price"
        );
        Ok(Paid { sale, receipt, refunded: BTreeMap::new() })
    }

    /// Refunds up to `amount` (everything if `None`), and records it.
    pub(crate) fn refund(
        &self,
        paid: &mut Paid,
        amount: Option<Money>,
        fee: Money,
    ) -> anyhow::Result<Vec<RefundPermission>> {
        let mut left = amount.unwrap_or(paid.receipt.total.money);
        let mut permissions = Vec::new();
        for coin in &paid.receipt.coins {
            let part = left.min(coin.contribution.money);
            if part.is_zero() || part < fee {
                continue;
            }
            left = left.checked_sub(part)?;
            let amount = part.of(coin.contribution.currency);
            let rtransaction_id = 1;
            let message = MerchantRefund {
                h_contract_terms: paid.sale.request.h_contract_terms,
                coin_pub: coin.coin_pub,
                rtransaction_id,
                refund_amount: amount,
            };
            permissions.push(RefundPermission {
                coin_pub: coin.coin_pub,
                rtransaction_id,
                amount,
                merchant_sig: message.sign(&self.key),
            });
            paid.refunded.insert(coin.coin_pub, part);
        }
        ensure!(!permissions.is_empty(), "nothing can be given back");
        Ok(permissions)
    }

    /// Asks the exchange which transfer paid for a coin. `None` if it is not paid yet.
    async fn track(
        &self,
        client: &Client,
        exchange: &Exchange,
        paid: &Paid,
        coin_pub: EddsaPublicKey,
        now: Timestamp,
    ) -> anyhow::Result<Option<DepositTransfer>> {
        let (h_contract_terms, h_wire) = (paid.sale.request.h_contract_terms, self.h_wire());
        let merchant_sig = MerchantTrackTransaction { h_contract_terms, h_wire, coin_pub }.sign(&self.key);
        let base = &exchange.base_url;
        let url = format!("{base}deposits/{h_wire}/{}/{h_contract_terms}/{coin_pub}", self.key_pub);
        let reply = client.get(url).query("merchant_sig", merchant_sig).send().await?;
        if reply.status == 202 {
            let _: DepositPending = reply.json()?;
            return Ok(None);
        }
        let answer: DepositTransfer = reply.ok()?;
        exchange.require_signing_key(&answer.exchange_pub, now)?;
        let confirmation = ExchangeConfirmWire {
            h_wire,
            h_contract_terms,
            wtid: answer.wtid,
            coin_pub,
            execution_time: answer.execution_time,
            coin_contribution: answer.coin_contribution,
        };
        ensure!(
            confirmation.verify(&answer.exchange_pub, &answer.exchange_sig),
            "a tracking answer is not signed by the exchange"
        );
        Ok(Some(answer))
    }

    /// Asks the exchange which deposits a transfer pays.
    async fn transfer(
        &self,
        client: &Client,
        exchange: &Exchange,
        wtid: &Wtid,
        now: Timestamp,
    ) -> anyhow::Result<TransferResponse> {
        let reply = client.get_json(format!("{}transfers/{wtid}", exchange.base_url)).await?;
        let answer: TransferResponse = reply.ok()?;
        exchange.require_signing_key(&answer.exchange_pub, now)?;
        let confirmation = ExchangeConfirmWireDeposit {
            total: answer.total,
            wire_fee: answer.wire_fee,
            merchant_pub: answer.merchant_pub,
            h_payto: answer.h_payto,
            h_details: wire_details_hash(answer.execution_time, &answer.deposits),
        };
        ensure!(
            confirmation.verify(&answer.exchange_pub, &answer.exchange_sig),
            "a transfer's details are not signed by the exchange"
        );
        ensure!(
            answer.merchant_pub == self.key_pub && answer.h_payto == h_payto(&self.payto),
            "the transfer is for somebody else"
        );
        let mut sum = Money::ZERO;
        for deposit in &answer.deposits {
            sum = sum.checked_add(deposit.deposit_value.money)?.checked_sub(deposit.deposit_fee.money)?;
        }
        ensure!(
            sum.checked_sub(answer.wire_fee.money)? == answer.total.money,
            "a transfer's details do not add up"
        );
        Ok(answer)
    }

    /// Traces every sale to the bank: the exchange names the transfer that paid it and the deposits which
    /// that transfer pays, and the bank has a transfer of exactly that amount to the merchant's account.
    /// Returns the transfers with their amounts.
    ///
    /// # Errors
    /// The contradiction.
    pub(crate) async fn reconcile(
        &self,
        client: &Client,
        exchange: &Exchange,
        sales: &[Paid],
        bank_history: &[OutgoingTransaction],
        round_unit: Money,
        now: Timestamp,
    ) -> anyhow::Result<BTreeMap<Wtid, Money>> {
        let mut refunded: BTreeMap<(HashCode, EddsaPublicKey), Money> = BTreeMap::new();
        let mut transfers: BTreeMap<Wtid, Money> = BTreeMap::new();
        for paid in sales {
            for coin in &paid.receipt.coins {
                let h_contract_terms = paid.sale.request.h_contract_terms;
                let back = paid.refunded.get(&coin.coin_pub).copied().unwrap_or(Money::ZERO);
                refunded.insert((h_contract_terms, coin.coin_pub), back);
                if back == coin.contribution.money {
                    continue;
                }
                let Some(answer) = self.track(client, exchange, paid, coin.coin_pub, now).await? else {
                    bail!("a deposit is past its deadline and not paid");
                };
                ensure!(
                    answer.coin_contribution == coin.contribution.checked_sub(&coin.deposit_fee)?,
                    "the exchange pays another amount than was deposited"
                );
                transfers.insert(answer.wtid, Money::ZERO);
            }
        }
        for (wtid, amount) in &mut transfers {
            let details = self.transfer(client, exchange, wtid, now).await?;
            let mut sum = Money::ZERO;
            for deposit in &details.deposits {
                let key = (deposit.h_contract_terms, deposit.coin_pub);
                let back = refunded.get(&key).copied().unwrap_or(Money::ZERO);
                // A complete refund also waives the deposit fee.
                if back < deposit.deposit_value.money {
                    let net = deposit.deposit_value.money.checked_sub(back)?;
                    sum = sum.checked_add(net)?.checked_sub(deposit.deposit_fee.money)?;
                }
            }
            let expected = sum.checked_sub(details.wire_fee.money)?.round_down(round_unit)?;
            let row =
                bank_history.iter().find(|row| row.wtid == *wtid).context("the bank has no such transfer")?;
            ensure!(
                row.amount.money == expected,
                "the bank transferred {}, but the sales add up to {expected}",
                row.amount
            );
            let payee = PaytoUri::parse(row.credit_account.as_str()).context("the bank's history")?;
            ensure!(
                payee.account().eq_ignore_ascii_case(&self.account),
                "the transfer went to {}",
                row.credit_account
            );
            *amount = expected;
        }
        Ok(transfers)
    }
}

/// A deadline in whole seconds, this long from now.
pub(crate) fn deadline(now: Timestamp, after: Duration) -> Timestamp {
    let seconds = now.saturating_add(after).as_secs().unwrap_or(u64::MAX / 2_000_000);
    Timestamp::from_secs(seconds)
}
