//! The exchange's purses.

use batzen_crypto::{AgeCommitment, AgeMask, EddsaPublicKey, EddsaSignature, HashCode, ShortHash, hash};
use batzen_protocol::api::exchange::*;
use batzen_protocol::payto::PaytoUri;
use batzen_protocol::signatures::*;
use batzen_protocol::{Amount, Duration, Money, Timestamp, hash_text};
use batzen_wallet::core::http::{HttpRequest, HttpResponse, Method};
use serde_json::json;

use super::exchange::{EXCHANGE, FakeExchange, body, cents, currency, error, error_with, kyc_required, ok};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Open,
    Paid,
    Expired,
    Deleted,
}

#[derive(Clone)]
struct Merge {
    reserve: EddsaPublicKey,
    merge_sig: EddsaSignature,
    reserve_sig: EddsaSignature,
    time: Timestamp,
    flags: u32,
}

#[derive(Clone)]
struct Deposit {
    coin_pub: EddsaPublicKey,
    amount: Money,
    coin_sig: EddsaSignature,
}

/// A purse.
#[derive(Clone)]
pub(super) struct FakePurse {
    target: Amount,
    min_age: u32,
    expiration: Timestamp,
    h_contract_terms: HashCode,
    merge_pub: EddsaPublicKey,
    deposits: Vec<Deposit>,
    balance: Money,
    pub(super) state: State,
    merge: Option<Merge>,
    contract: Option<EncryptedContract>,
}

impl FakePurse {
    fn contributed(&self) -> Money {
        Money::checked_sum(self.deposits.iter().map(|deposit| deposit.amount)).unwrap()
    }
}

type Refused = Box<HttpResponse>;

impl FakeExchange {
    /// The money in open purses.
    pub(super) fn in_purses(&self) -> Money {
        let open = self.purses.values().filter(|purse| purse.state == State::Open);
        Money::checked_sum(open.map(FakePurse::contributed)).unwrap()
    }

    pub(super) fn global_fee(&self) -> GlobalFee {
        let zero = Money::ZERO.of(currency());
        let mut fee = GlobalFee {
            start_date: self.start,
            end_date: self.start.saturating_add(Duration::from_days(365)),
            history_fee: zero,
            account_fee: zero,
            purse_fee: cents(self.terms.fee_purse).of(currency()),
            history_expiration: Duration::from_days(365),
            purse_timeout: Duration::from_secs(3600),
            purse_account_limit: 5,
            master_sig: EddsaSignature::ZERO,
        };
        fee.master_sig = fee.message().sign(&self.master);
        fee
    }

    /// Gives back the coins of all purses that have expired, as a worker of the exchange does.
    pub fn expire_purses(&mut self, now: Timestamp) {
        let due: Vec<EddsaPublicKey> = self
            .purses
            .iter()
            .filter(|(_, purse)| purse.state == State::Open && purse.expiration <= now)
            .map(|(purse_pub, _)| *purse_pub)
            .collect();
        for purse_pub in due {
            self.give_back(purse_pub, State::Expired);
        }
    }

    fn give_back(&mut self, purse_pub: EddsaPublicKey, state: State) {
        let purse = self.purses.get_mut(&purse_pub).unwrap();
        purse.state = state;
        for deposit in purse.deposits.clone() {
            let h_denom = self.coins[&deposit.coin_pub].h_denom;
            let refund_fee = self.denom(&h_denom).unwrap().terms.fee_refund;
            let net = deposit.amount.checked_sub(refund_fee.money).unwrap_or(Money::ZERO);
            let message = ExchangeConfirmPurseRefund {
                purse_pub,
                coin_pub: deposit.coin_pub,
                refunded_amount: net.of(currency()),
                refund_fee,
            };
            let refund = CoinHistoryItem::PurseRefund(CoinPurseRefund {
                amount: net.of(currency()),
                refund_fee,
                exchange_sig: message.sign(&self.signer),
                exchange_pub: self.signer.public_key(),
                purse_pub,
            });
            let row = self.coins.get_mut(&deposit.coin_pub).unwrap();
            row.remaining = row.remaining.checked_add(deposit.amount).unwrap();
            for item in &mut row.history {
                if let CoinHistoryItem::PurseDeposit(item) = item
                    && item.purse_pub == purse_pub
                {
                    item.refunded = true;
                }
            }
            row.history.push(refund);
        }
    }

    pub(super) fn people(
        &mut self,
        request: &HttpRequest,
        segments: &[&str],
        now: Timestamp,
    ) -> HttpResponse {
        let answer = match (request.method, segments) {
            (Method::Post, ["purses", purse, "create"]) => {
                self.create(purse.parse().unwrap(), body(request), now)
            }
            (Method::Post, ["purses", purse, "deposit"]) => {
                self.pay_in(purse.parse().unwrap(), body(request), now)
            }
            (Method::Post, ["purses", purse, "merge"]) => {
                self.merge(purse.parse().unwrap(), &body(request), now)
            }
            (Method::Post, ["reserves", reserve, "purse"]) => {
                self.ask(reserve.parse().unwrap(), body(request), now)
            }
            (Method::Get, ["purses", purse, "merge" | "deposit"]) => {
                self.purse_status(purse.parse().unwrap(), now)
            }
            (Method::Delete, ["purses", purse]) => {
                self.delete(purse.parse().unwrap(), request.purse_sig.expect("a signature"))
            }
            (Method::Get, ["contracts", key]) => Ok(self.contract(key.parse().unwrap())),
            _ => Ok(error(404, 21)),
        };
        answer.unwrap_or_else(|refused| *refused)
    }

    fn contract(&self, key: EddsaPublicKey) -> HttpResponse {
        let found = self.purses.iter().find_map(|(purse_pub, purse)| {
            let contract = purse.contract.as_ref().filter(|contract| contract.contract_pub == key)?;
            Some((*purse_pub, contract.clone()))
        });
        match found {
            Some((purse_pub, EncryptedContract { econtract, econtract_sig, .. })) => {
                ok(&ContractResponse { purse_pub, econtract_sig, econtract })
            }
            None => error(404, 1950),
        }
    }

    fn check_contract(purse_pub: EddsaPublicKey, contract: Option<&EncryptedContract>) {
        let contract = contract.expect("wallets send a contract");
        let message = WalletPurseEcontract {
            h_econtract: hash::sha512(&contract.econtract.0),
            contract_pub: contract.contract_pub,
        };
        assert!(message.verify(&purse_pub, &contract.econtract_sig), "contract signature");
    }

    fn confirm(&self, purse_pub: EddsaPublicKey, total: Money, now: Timestamp) -> PurseConfirmation {
        let purse = &self.purses[&purse_pub];
        let message = ExchangeConfirmPurseCreation {
            exchange_time: now,
            purse_expiration: purse.expiration,
            amount_without_fee: purse.target,
            total_deposited: total.of(currency()),
            purse_pub,
            h_contract_terms: purse.h_contract_terms,
        };
        PurseConfirmation {
            total_deposited: total.of(currency()),
            exchange_timestamp: now,
            exchange_sig: message.sign(&self.signer),
            exchange_pub: self.signer.public_key(),
        }
    }

    fn create(
        &mut self,
        purse_pub: EddsaPublicKey,
        body: PurseCreateRequest,
        now: Timestamp,
    ) -> Result<HttpResponse, Refused> {
        let message = WalletPurseCreate {
            purse_expiration: body.purse_expiration,
            purse_amount: body.amount,
            h_contract_terms: body.h_contract_terms,
            merge_pub: body.merge_pub,
            min_age: body.min_age,
        };
        assert!(message.verify(&purse_pub, &body.purse_sig), "purse signature");
        Self::check_contract(purse_pub, body.econtract.as_ref());
        if body.purse_expiration <= now {
            return Err(Box::new(error(400, 1853)));
        }
        let is_new = !self.purses.contains_key(&purse_pub);
        let purse = self.purses.entry(purse_pub).or_insert(FakePurse {
            target: body.amount,
            min_age: body.min_age,
            expiration: body.purse_expiration,
            h_contract_terms: body.h_contract_terms,
            merge_pub: body.merge_pub,
            deposits: Vec::new(),
            balance: Money::ZERO,
            state: State::Open,
            merge: None,
            contract: None,
        });
        if purse.h_contract_terms != body.h_contract_terms || purse.merge_pub != body.merge_pub {
            return Err(Box::new(error(409, 1850)));
        }
        match self.deposit_coins(purse_pub, &body.deposits, now) {
            Ok(total) => {
                let purse = self.purses.get_mut(&purse_pub).unwrap();
                if purse.state == State::Open {
                    purse.contract = body.econtract;
                }
                Ok(ok(&self.confirm(purse_pub, total, now)))
            }
            Err(refused) => {
                if is_new {
                    self.purses.remove(&purse_pub);
                }
                Err(refused)
            }
        }
    }

    fn current(&self, purse_pub: EddsaPublicKey, now: Timestamp) -> Result<&FakePurse, Refused> {
        let purse = self.purses.get(&purse_pub).ok_or_else(|| Box::new(error(404, 1025)))?;
        match purse.state {
            State::Deleted => Err(Box::new(error(410, 1031))),
            _ if purse.expiration <= now => Err(Box::new(error(410, 1026))),
            _ => Ok(purse),
        }
    }

    fn pay_in(
        &mut self,
        purse_pub: EddsaPublicKey,
        body: PurseDepositRequest,
        now: Timestamp,
    ) -> Result<HttpResponse, Refused> {
        self.current(purse_pub, now)?;
        self.deposit_coins(purse_pub, &body.deposits, now)?;
        let purse = self.purses[&purse_pub].clone();
        let answer = self.confirm(purse_pub, purse.balance, now);
        Ok(ok(&PurseDepositConfirmation {
            total_deposited: answer.total_deposited,
            purse_value_after_fees: purse.target,
            exchange_timestamp: answer.exchange_timestamp,
            purse_expiration: purse.expiration,
            h_contract_terms: purse.h_contract_terms,
            exchange_sig: answer.exchange_sig,
            exchange_pub: answer.exchange_pub,
        }))
    }

    /// Deposits all coins or none. Returns the sum of the coins, less deposit fees.
    fn deposit_coins(
        &mut self,
        purse_pub: EddsaPublicKey,
        coins: &[PurseCoin],
        now: Timestamp,
    ) -> Result<Money, Refused> {
        assert!(!coins.is_empty() && coins.len() <= 256);
        for coin in coins {
            self.usable(&coin.denom_pub_hash, "PURSE CREATE", now)?;
        }
        let before = self.coins.clone();
        let mut purse = self.purses[&purse_pub].clone();
        let mut total = Money::ZERO;
        for coin in coins {
            let denom = self.usable(&coin.denom_pub_hash, "PURSE CREATE", now)?;
            let (mask, fee) = (denom.public.age_mask, denom.terms.fee_deposit.money);
            let commitment = coin
                .age_commitment
                .clone()
                .map(|keys| AgeCommitment::new(AgeMask::new(mask).unwrap(), keys).expect("one key a group"));
            let h_age = commitment.as_ref().map(AgeCommitment::hash);
            let message = WalletPurseDeposit {
                coin_amount: coin.amount,
                h_denom_pub: coin.denom_pub_hash,
                h_age_commitment: h_age.unwrap_or(ShortHash::ZERO),
                purse_pub,
                h_exchange_base_url: hash_text(EXCHANGE),
            };
            assert!(message.verify(&coin.coin_pub, &coin.coin_sig), "coin signature");
            if let Some(commitment) = &commitment
                && purse.min_age > 0
            {
                let age = u8::try_from(purse.min_age).unwrap();
                assert!(commitment.verify(age, coin.attest.as_ref().expect("an attestation")), "old enough");
            }
            let net = coin.amount.money.checked_sub(fee).expect("the coin pays its fee");
            total = total.checked_add(net).unwrap();
            match purse.deposits.iter().find(|known| known.coin_pub == coin.coin_pub) {
                Some(known) if known.coin_sig == coin.coin_sig => continue,
                Some(_) => {
                    self.coins = before;
                    return Err(Box::new(error(409, 1858)));
                }
                None => {}
            }
            if purse.state != State::Open {
                self.coins = before;
                return Err(Box::new(error(410, 1976)));
            }
            self.known_coin(coin.coin_pub, &coin.denom_pub_hash, &coin.ub_sig, h_age);
            let row = self.coins.get_mut(&coin.coin_pub).unwrap();
            let Ok(rest) = row.remaining.checked_sub(coin.amount.money) else {
                let conflict = self.conflict(coin.coin_pub, 1012);
                self.coins = before;
                return Err(conflict);
            };
            row.remaining = rest;
            row.history.push(CoinHistoryItem::PurseDeposit(CoinPurseDeposit {
                amount: coin.amount,
                exchange_base_url: EXCHANGE.to_owned(),
                h_age_commitment: h_age,
                purse_pub,
                refunded: false,
                coin_sig: coin.coin_sig,
            }));
            let Amount { money: amount, .. } = coin.amount;
            purse.deposits.push(Deposit { coin_pub: coin.coin_pub, amount, coin_sig: coin.coin_sig });
            purse.balance = purse.balance.checked_add(net).unwrap();
        }
        let is_due =
            purse.state == State::Open && purse.merge.is_some() && purse.balance >= purse.target.money;
        self.purses.insert(purse_pub, purse);
        if is_due {
            self.pay_out(purse_pub);
        }
        Ok(total)
    }

    /// A merged purse is full: its reserve gets the money.
    fn pay_out(&mut self, purse_pub: EddsaPublicKey) {
        let purse = self.purses.get_mut(&purse_pub).unwrap();
        purse.state = State::Paid;
        let (target, contributed) = (purse.target, purse.contributed());
        let reserve = purse.merge.as_ref().unwrap().reserve;
        let balance = self.reserves.entry(reserve).or_default();
        *balance = balance.checked_add(target.money).unwrap();
        for item in self.reserve_histories.entry(reserve).or_default() {
            if let ReserveHistoryItem::Merge(item) = item
                && item.purse_pub == purse_pub
            {
                item.merged = true;
            }
        }
        self.add_fee(contributed.checked_sub(target.money).unwrap());
    }

    /// Verifies both signatures of a merge and records it.
    fn record_merge(&mut self, purse_pub: EddsaPublicKey, payto: &PaytoUri, merge: Merge) {
        let purse = self.purses.get_mut(&purse_pub).unwrap();
        let message = WalletPurseMerge { merge_timestamp: merge.time, purse_pub, h_payto: payto.hash() };
        assert!(message.verify(&purse.merge_pub, &merge.merge_sig), "merge signature");
        let zero = Money::ZERO.of(currency());
        let account = WalletAccountMerge {
            purse_expiration: purse.expiration,
            purse_amount: purse.target,
            purse_fee: zero,
            h_contract_terms: purse.h_contract_terms,
            purse_pub,
            merge_timestamp: merge.time,
            min_age: purse.min_age,
            flags: merge.flags,
        };
        assert!(account.verify(&merge.reserve, &merge.reserve_sig), "reserve signature");
        let item = ReserveHistoryItem::Merge(ReserveMerge {
            h_contract_terms: purse.h_contract_terms,
            merge_pub: purse.merge_pub,
            min_age: purse.min_age,
            flags: merge.flags,
            purse_pub,
            reserve_sig: merge.reserve_sig,
            merge_timestamp: merge.time,
            purse_expiration: purse.expiration,
            purse_fee: zero,
            amount: purse.target,
            merged: false,
        });
        self.reserves.entry(merge.reserve).or_default();
        self.reserve_histories.entry(merge.reserve).or_default().push(item);
        purse.merge = Some(merge);
    }

    fn merge(
        &mut self,
        purse_pub: EddsaPublicKey,
        body: &PurseMergeRequest,
        now: Timestamp,
    ) -> Result<HttpResponse, Refused> {
        let payto = PaytoUri::parse(body.payto_uri.as_str()).unwrap();
        let (provider, reserve) = payto.to_reserve().unwrap();
        assert_eq!(provider, EXCHANGE);
        let purse = self.purses.get(&purse_pub).ok_or_else(|| Box::new(error(404, 1025)))?.clone();
        match &purse.merge {
            Some(known) if known.merge_sig != body.merge_sig => {
                let proof = json!({
                    "merge_timestamp": known.time, "merge_sig": known.merge_sig, "reserve_pub": known.reserve,
                });
                return Err(Box::new(error_with(409, 1676, proof)));
            }
            Some(_) => {}
            None if purse.state == State::Deleted => return Err(Box::new(error(410, 1031))),
            None if purse.expiration <= now => return Err(Box::new(error(410, 1026))),
            None if self.kyc => return Err(Box::new(kyc_required())),
            None if purse.balance < purse.target.money => return Err(Box::new(error(402, 1878))),
            None => {
                let merge = Merge {
                    reserve,
                    merge_sig: body.merge_sig,
                    reserve_sig: body.reserve_sig,
                    time: body.merge_timestamp,
                    flags: 1,
                };
                self.record_merge(purse_pub, &payto, merge);
                self.pay_out(purse_pub);
            }
        }
        let message = ExchangeConfirmPurseMerged {
            exchange_time: now,
            purse_expiration: purse.expiration,
            amount_without_fee: purse.target,
            purse_pub,
            reserve_pub: reserve,
            h_contract_terms: purse.h_contract_terms,
            h_provider_url: hash_text(EXCHANGE),
        };
        Ok(ok(&PurseMergeConfirmation {
            merge_amount: purse.target,
            exchange_timestamp: now,
            exchange_sig: message.sign(&self.signer),
            exchange_pub: self.signer.public_key(),
        }))
    }

    fn ask(
        &mut self,
        reserve: EddsaPublicKey,
        body: ReservePurseRequest,
        now: Timestamp,
    ) -> Result<HttpResponse, Refused> {
        let fee = body.purse_fee.expect("wallets offer a fee of zero").money;
        if fee < cents(self.terms.fee_purse) {
            return Err(Box::new(error(400, 1678)));
        }
        let message = WalletPurseCreate {
            purse_expiration: body.purse_expiration,
            purse_amount: body.purse_value,
            h_contract_terms: body.h_contract_terms,
            merge_pub: body.merge_pub,
            min_age: body.min_age,
        };
        assert!(message.verify(&body.purse_pub, &body.purse_sig), "purse signature");
        Self::check_contract(body.purse_pub, body.econtract.as_ref());
        if self.kyc {
            return Err(Box::new(kyc_required()));
        }
        if let Some(purse) = self.purses.get(&body.purse_pub) {
            let known = purse.merge.as_ref().unwrap();
            assert_eq!((known.merge_sig, known.reserve), (body.merge_sig, reserve), "the same request");
            match purse.state {
                State::Deleted => return Err(Box::new(error(410, 1031))),
                State::Expired => return Err(Box::new(error(410, 1026))),
                State::Open | State::Paid => {}
            }
            return Ok(ok(&self.confirm(body.purse_pub, Money::ZERO, now)));
        }
        if body.purse_expiration <= now {
            return Err(Box::new(error(400, 1775)));
        }
        self.purses.insert(
            body.purse_pub,
            FakePurse {
                target: body.purse_value,
                min_age: body.min_age,
                expiration: body.purse_expiration,
                h_contract_terms: body.h_contract_terms,
                merge_pub: body.merge_pub,
                deposits: Vec::new(),
                balance: Money::ZERO,
                state: State::Open,
                merge: None,
                contract: body.econtract,
            },
        );
        let merge = Merge {
            reserve,
            merge_sig: body.merge_sig,
            reserve_sig: body.reserve_sig,
            time: body.merge_timestamp,
            flags: 3,
        };
        self.record_merge(body.purse_pub, &PaytoUri::reserve(EXCHANGE, &reserve).unwrap(), merge);
        Ok(ok(&self.confirm(body.purse_pub, Money::ZERO, now)))
    }

    fn purse_status(&self, purse_pub: EddsaPublicKey, now: Timestamp) -> Result<HttpResponse, Refused> {
        let purse = self.current(purse_pub, now)?;
        let is_full = purse.balance >= purse.target.money;
        let deposit_timestamp = is_full.then_some(now);
        let merge_timestamp = purse.merge.as_ref().map_or(Timestamp::NEVER, |merge| merge.time);
        let balance = purse.balance.of(currency());
        let message = ExchangePurseStatus {
            merge_timestamp,
            deposit_timestamp: deposit_timestamp.unwrap_or(Timestamp::ZERO),
            balance,
        };
        Ok(ok(&PurseStatus {
            balance,
            exchange_sig: message.sign(&self.signer),
            exchange_pub: self.signer.public_key(),
            merge_timestamp: Some(merge_timestamp),
            deposit_timestamp,
        }))
    }

    fn delete(
        &mut self,
        purse_pub: EddsaPublicKey,
        purse_sig: EddsaSignature,
    ) -> Result<HttpResponse, Refused> {
        assert!(WalletPurseDelete {}.verify(&purse_pub, &purse_sig), "purse signature");
        let purse = self.purses.get_mut(&purse_pub).ok_or_else(|| Box::new(error(404, 1025)))?;
        if purse.state != State::Open {
            return Err(Box::new(error(409, 1679)));
        }
        purse.contract = None;
        self.give_back(purse_pub, State::Deleted);
        Ok(HttpResponse { status: 204, ..HttpResponse::default() })
    }
}
