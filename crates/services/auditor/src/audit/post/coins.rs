//! Coins, deposits and refunds.

use batzen_crypto::{HashCode, ShortHash, denom};
use batzen_protocol::signatures::{MerchantRefund, WalletCoinDeposit};
use batzen_tables::exchange::{Coins, Deposits, Refunds};

use super::{Poster, Row};
use crate::audit::books::{CoinFacts, Receiver};
use crate::audit::finding::Rule;

/// The hash of no age commitment.
pub(super) const NO_AGE: ShortHash = ShortHash::from_bytes([0; 32]);
/// The hash of no policy.
const NO_POLICY: HashCode = HashCode::from_bytes([0; 64]);

impl Poster<'_> {
    pub(super) fn coin(&mut self, row: Row<'_, Coins>) {
        let (key, coin, serial) = (&row.found.key, &row.found.row, row.found.serial);
        let facts = CoinFacts {
            denom: coin.denom,
            h_age: coin.h_age,
            remaining: coin.remaining.units(),
            zombie: coin.zombie,
        };
        self.books.coins.change(&key.coin_pub, |book| row.way.note(&mut book.coin, serial, facts));
        self.tally.denom(coin.denom).known += row.way.one();
        if !row.is_new() {
            return;
        }
        let Some(terms) = self.terms.denom(coin.denom) else {
            let finding = row.finding(Rule::CoinDenomination).about(key.coin_pub.as_bytes());
            return self.found(finding);
        };
        let value = terms.row.value.units();
        let Some(public) = terms.public.clone() else { return };
        let hash = denom::h_coin_pub(&key.coin_pub, coin.h_age.as_ref());
        self.claims.coin(row.origin(), value, key.coin_pub, hash, public, coin.denom_sig.clone());
    }

    pub(super) fn deposit(&mut self, row: Row<'_, Deposits>) {
        let (key, deposit, serial, way) = (&row.found.key, &row.found.row, row.found.serial, row.way);
        let (amount, refunded) = (deposit.amount.units(), deposit.refunded.units());
        let facts = self.books.coins.change(&key.coin_pub, |book| {
            book.spent += way.of(amount);
            book.user = row.user();
            book.coin.as_ref().map(|coin| coin.row)
        });
        if refunded > 0 {
            self.books.refunds.change(&key.clone(), |book| {
                book.claimed += way.of(refunded);
                book.serial = serial;
            });
        }
        let net = way.of(amount) - way.of(refunded);
        let fee = self.terms.denom(deposit.denom).map_or(0, |terms| terms.row.fee_deposit.units());
        // A complete refund waives the fee.
        let fee_due = if net == 0 { 0 } else { way.of(fee) };
        self.tally.denom(deposit.denom).deposit_fees += fee_due;
        match &deposit.wtid {
            None => self.tally.sums.open_deposits += net,
            Some(wtid) => {
                let receiver = Receiver { h_payto: deposit.h_payto, merchant_pub: key.merchant_pub };
                self.books.transfers.change(wtid, |book| {
                    book.deposits += way.one();
                    book.contributed += net;
                    book.fees += fee_due;
                    if net.unsigned_abs() < fee && net != 0 {
                        book.small += way.one();
                    }
                    if row.is_there() && book.receiver.get_or_insert((receiver, serial)).0 != receiver {
                        book.stray = Some(serial);
                    }
                });
            }
        }
        if !row.is_new() {
            return;
        }
        if refunded > amount {
            let finding = row.finding(Rule::RefundExcess).about(key.coin_pub.as_bytes());
            self.found(finding.figures(refunded as i128, amount as i128));
        }
        if deposit.refund_deadline > deposit.wire_deadline {
            self.found(row.finding(Rule::DepositDeadlines));
        }
        if amount < fee {
            self.found(row.finding(Rule::DepositBelowFee).figures(amount as i128, fee as i128));
        }
        let Some(facts) = facts else { return };
        if facts.denom != deposit.denom {
            let finding = row.finding(Rule::DepositDenomination).about(key.coin_pub.as_bytes());
            self.found(finding.risking(amount));
        }
        let Some(h_denom_pub) = self.terms.denom(facts.denom).map(|terms| terms.row.h_denom_pub) else {
            return;
        };
        // Without the account, no signature is valid: the receiver is unknown.
        let h_wire = self.h_wire(deposit.h_payto, deposit.wire_salt).unwrap_or(NO_POLICY);
        let fee = self.terms.denom(deposit.denom).map_or(deposit.amount, |terms| terms.row.fee_deposit);
        let message = WalletCoinDeposit {
            h_contract_terms: key.h_contract_terms,
            h_age_commitment: facts.h_age.unwrap_or(NO_AGE),
            h_policy: NO_POLICY,
            h_wire,
            h_denom_pub,
            wallet_timestamp: deposit.wallet_time,
            refund_deadline: deposit.refund_deadline,
            amount_with_fee: self.money(deposit.amount),
            deposit_fee: self.money(fee),
            merchant_pub: key.merchant_pub,
        };
        let signature = deposit.coin_sig;
        self.claims.signature(
            Rule::DepositSignature,
            row.origin(),
            amount,
            key.coin_pub,
            &message,
            signature,
        );
    }

    pub(super) fn refund(&mut self, row: Row<'_, Refunds>) {
        let (key, refund, way) = (&row.found.key, &row.found.row, row.way);
        let amount = refund.amount.units();
        self.books.refunds.change(&key.deposit(), |book| book.refunded += way.of(amount));
        let facts = self.books.coins.change(&key.coin_pub, |book| {
            book.user = row.user();
            book.coin.as_ref().map(|coin| coin.row)
        });
        let terms = facts.and_then(|facts| self.terms.denom(facts.denom));
        let fee = terms.map_or(0, |terms| terms.row.fee_refund.units());
        self.tally.sums.refund_fees += way.of(fee);
        let back = amount.saturating_sub(fee);
        self.books.coins.change(&key.coin_pub, |book| book.back += way.of(back));
        if !row.is_new() {
            return;
        }
        if amount < fee {
            self.found(row.finding(Rule::RefundFee).figures(amount as i128, fee as i128));
        }
        let message = MerchantRefund {
            h_contract_terms: key.h_contract_terms,
            coin_pub: key.coin_pub,
            rtransaction_id: key.rtransaction_id,
            refund_amount: self.money(refund.amount),
        };
        let signature = refund.merchant_sig;
        self.claims.signature(
            Rule::RefundSignature,
            row.origin(),
            amount,
            key.merchant_pub,
            &message,
            signature,
        );
    }
}
