//! The user's actions: exchanges, withdrawals, payments, refunds.

use batzen_crypto::HashCode;
use batzen_protocol::{Amount, Timestamp};

use super::{ManualWithdrawal, Wallet, WalletError};
use crate::bank::{self, WithdrawOffer};
use crate::core::discretion::Discretion;
use crate::core::evidence;
use crate::core::exchange::{CoinWish, Exchange, ExchangeUpdate};
use crate::core::http::{HttpRequest, HttpResponse};
use crate::core::payment::{self, DepositAmount, PaymentReceipt, PaymentRequest, PaymentStage};
use crate::core::purchase::{pay, refunds};
use crate::core::purse::{income, payment as purse_payment};
use crate::core::refund::{self, RefundPermission};
use crate::core::state::OpKind;
use crate::core::url::normalise_base_url;
use crate::core::withdraw::{self, BankLogin, BankOperation, Origin};
use crate::core::{Change, CoreError, Entropy, OpId, WalletState, bad_input, refresh, tip};

impl Wallet {
    /// Adds or updates an exchange: fetches and verifies everything it publishes.
    ///
    /// # Errors
    /// If it does not answer, or its answers are invalid.
    pub async fn add_exchange(&self, url: &str) -> Result<Exchange, WalletError> {
        let base_url = normalise_base_url(url)?;
        let previous = self.with_state(|state| state.exchanges.get(&base_url).cloned());
        let mut update = ExchangeUpdate::new(base_url.clone(), previous);
        loop {
            let request = update.next();
            let response = self.send(&request).await?;
            let now = self.now();
            let received = update.receive(&response, now);
            if let Err(error) = &received
                && error.is_false_statement()
            {
                self.keep_false_listing(&base_url, &request, &response, error)?;
            }
            if let Some(mut changes) = received? {
                return self.step(|state, now, entropy| {
                    let fetched = changes.iter_mut().find_map(|change| match change {
                        Change::Exchange(exchange) => Some(exchange),
                        _ => None,
                    });
                    let Some(fetched) = fetched else {
                        return Err(CoreError::Inconsistent("an update gave no exchange".to_owned()));
                    };
                    if let Some(known) = state.exchanges.get(&base_url) {
                        fetched.keep(known);
                    }
                    let exchange = fetched.as_ref().clone();
                    let mut updated = state.clone();
                    for change in &changes {
                        updated.apply(change.clone());
                    }
                    changes.extend(evidence::settle_lists(&updated, &base_url, now)?);
                    changes.extend(crate::core::plan(&updated, now, entropy)?);
                    Ok((exchange, changes))
                });
            }
        }
    }

    /// Keeps a known exchange's false listing as evidence.
    fn keep_false_listing(
        &self,
        base_url: &str,
        request: &HttpRequest,
        response: &HttpResponse,
        error: &CoreError,
    ) -> Result<(), WalletError> {
        self.step(|state, now, _| {
            if !state.exchanges.contains_key(base_url) {
                return Ok(((), Vec::new()));
            }
            let changes = evidence::record_about_exchange(state, base_url, request, response, error, now)?;
            Ok(((), changes))
        })
    }

    /// The exchange, updated if its data is older than an hour. If it does not answer, the stored data is
    /// used.
    ///
    /// # Errors
    /// If it is unknown and gives no valid answer.
    pub async fn fresh_exchange(&self, url: &str) -> Result<Exchange, WalletError> {
        let base_url = normalise_base_url(url)?;
        match self.with_state(|state| state.exchanges.get(&base_url).cloned()) {
            Some(exchange) if !exchange.is_stale(self.now()) => Ok(exchange),
            Some(exchange) => match self.add_exchange(&base_url).await {
                Err(WalletError::NoAnswer(_) | WalletError::Unavailable { .. }) => Ok(exchange),
                other => other,
            },
            None => self.add_exchange(&base_url).await,
        }
    }

    /// Accepts the current terms of service of a known exchange.
    ///
    /// # Errors
    /// If the exchange is not known.
    pub fn accept_terms(&self, url: &str) -> Result<(), WalletError> {
        let base_url = normalise_base_url(url)?;
        self.step(|state, _, _| Ok(((), state.accept_terms(&base_url)?)))
    }

    /// Records what the user wants done for privacy at an exchange.
    ///
    /// # Errors
    /// If the exchange is not known, or an option is out of its range.
    pub fn set_discretion(&self, url: &str, discretion: Discretion) -> Result<(), WalletError> {
        let base_url = normalise_base_url(url)?;
        self.step(|state, _, _| Ok(((), state.set_discretion(&base_url, discretion)?)))
    }

    /// Refreshes all change that waits for its time, because its value is needed now. Returns whether there
    /// was any.
    ///
    /// # Errors
    /// If the wallet itself fails.
    pub async fn hasten_change(&self) -> Result<bool, WalletError> {
        let has_any = self.step(|state, now, _| {
            let urls = state.exchanges.keys();
            let changes: Vec<Change> = urls.flat_map(|url| refresh::hasten(state, url, now)).collect();
            Ok((!changes.is_empty(), changes))
        })?;
        if has_any {
            self.run_pending().await?;
        }
        Ok(has_any)
    }

    /// Runs a step that spends coins. If they do not suffice, the change that waits is refreshed first.
    pub(super) async fn spend<R>(
        &self,
        decide: impl Fn(&WalletState, Timestamp, &mut dyn Entropy) -> Result<(R, Vec<Change>), CoreError>,
    ) -> Result<R, WalletError> {
        match self.step(&decide) {
            Err(error @ WalletError::Core(CoreError::InsufficientFunds { .. })) => {
                if self.hasten_change().await? { self.step(&decide) } else { Err(error) }
            }
            result => result,
        }
    }

    /// Begins a withdrawal whose transfer the user makes.
    ///
    /// # Errors
    /// If the exchange cannot be used or the amount is too small for a coin.
    pub async fn withdraw_manual(
        &self,
        exchange_url: &str,
        amount: Amount,
        coins: impl Into<CoinWish>,
    ) -> Result<ManualWithdrawal, WalletError> {
        let wish = coins.into();
        let exchange = self.fresh_exchange(exchange_url).await?;
        let payto = exchange.accounts.first().cloned().ok_or_else(|| {
            bad_input("exchange", format!("{} publishes no bank account", exchange.base_url))
        })?;
        let operation = self.step(|state, now, entropy| {
            let origin = Origin::Manual { payto };
            withdraw::start(state, &exchange.base_url, amount, origin, wish, now, entropy)
        })?;
        self.manual_withdrawal(operation)
    }

    /// The data that the user needs for the transfer of a manual withdrawal.
    ///
    /// # Errors
    /// If there is no such withdrawal.
    pub fn manual_withdrawal(&self, operation: OpId) -> Result<ManualWithdrawal, WalletError> {
        Ok(self.with_state(|state| {
            let record = state.operation(operation)?;
            let exchange = state.exchange(&record.exchange)?;
            let OpKind::Withdrawal(withdrawal) = &record.kind else {
                return Err(bad_input("operation", format!("{operation} is not a withdrawal")));
            };
            let amount = exchange.amount(withdrawal.amount);
            let with_subject = |payto: &String| {
                let separator = if payto.contains('?') { '&' } else { '?' };
                format!("{payto}{separator}amount={amount}&message={}", withdrawal.reserve_pub)
            };
            Ok(ManualWithdrawal {
                operation,
                reserve_pub: withdrawal.reserve_pub,
                amount,
                payto_uris: exchange.accounts.iter().map(with_subject).collect(),
            })
        })?)
    }

    /// Asks a bank about the offer of a `taler://withdraw` URI. Records nothing.
    ///
    /// # Errors
    /// If the URI is malformed, or the bank gives no valid answer.
    pub async fn inspect_withdrawal(&self, uri: &str) -> Result<WithdrawOffer, WalletError> {
        let (integration_url, operation_id) = bank::parse_withdraw_uri(uri)?;
        let config = self.send(&bank::config_request(&integration_url)).await?;
        bank::check_config(&integration_url, &config)?;
        let answer = self.send(&bank::operation_request(&integration_url, &operation_id)).await?;
        Ok(bank::read_offer(&integration_url, &operation_id, &answer)?)
    }

    /// Accepts a bank's offer. With a `login` the wallet confirms at the (test) bank itself.
    ///
    /// # Errors
    /// If the exchange cannot be used or the amount is too small for a coin.
    pub async fn accept_withdrawal(
        &self,
        offer: &WithdrawOffer,
        exchange_url: Option<&str>,
        coins: impl Into<CoinWish>,
        login: Option<BankLogin>,
    ) -> Result<OpId, WalletError> {
        let wish = coins.into();
        let url = exchange_url.or(offer.suggested_exchange.as_deref());
        let url = url.ok_or_else(|| bad_input("exchange", "the bank suggests none; name one"))?;
        let exchange = self.fresh_exchange(url).await?;
        let exchange_payto = offer.account_of(&exchange)?;
        let known = self.with_state(|state| {
            state.operations.values().find_map(|operation| match &operation.kind {
                OpKind::Withdrawal(record) => match &record.origin {
                    Origin::Bank(bank)
                        if bank.operation_id == offer.operation_id
                            && bank.integration_url == offer.integration_url =>
                    {
                        Some(operation.id)
                    }
                    _ => None,
                },
                _ => None,
            })
        });
        if let Some(id) = known {
            return Ok(id);
        }
        let origin = Origin::Bank(BankOperation {
            integration_url: offer.integration_url.clone(),
            operation_id: offer.operation_id.clone(),
            exchange_payto,
            confirm_url: offer.confirm_url.clone(),
            confirm: login,
        });
        self.step(|state, now, entropy| {
            withdraw::start(state, &exchange.base_url, offer.amount, origin, wish, now, entropy)
        })
    }

    /// Opens an account at a test bank if needed and begins a withdrawal there. Records nothing yet.
    ///
    /// # Errors
    /// If the bank refuses.
    pub async fn begin_at_bank(
        &self,
        login: &BankLogin,
        amount: Amount,
    ) -> Result<WithdrawOffer, WalletError> {
        let answer = self.send(&bank::register_request(login)).await?;
        bank::check_registered(login, &answer)?;
        let answer = self.send(&bank::create_request(login, amount)).await?;
        self.inspect_withdrawal(&bank::read_created(&answer)?).await
    }

    /// Begins a withdrawal at a test bank to which the wallet has a login: opens the account if needed,
    /// creates the withdrawal, and confirms it once the wallet has recorded it.
    ///
    /// # Errors
    /// If bank or exchange refuses.
    pub async fn withdraw_from_bank(
        &self,
        bank_url: &str,
        user: &str,
        password: &str,
        amount: Amount,
        exchange_url: Option<&str>,
        coins: impl Into<CoinWish>,
    ) -> Result<OpId, WalletError> {
        let wish = coins.into();
        let login = BankLogin {
            access_url: bank::access_url(bank_url)?,
            user: user.to_owned(),
            password: password.to_owned(),
        };
        let offer = self.begin_at_bank(&login, amount).await?;
        self.accept_withdrawal(&offer, exchange_url, wish, Some(login)).await
    }

    /// Pays a merchant and waits for the exchange's confirmation. [`Wallet::run_pending`] refreshes the
    /// change.
    ///
    /// # Errors
    /// [`WalletError::Failed`] if the exchange refused. [`WalletError::Pending`] and related errors if it did
    /// not answer: the payment then continues with the next run and must not be repeated.
    pub async fn pay(&self, request: &PaymentRequest) -> Result<PaymentReceipt, WalletError> {
        let id = self.spend(|state, now, entropy| payment::start(state, request, now, entropy)).await?;
        self.finish_payment(id).await
    }

    /// Deposits coins into the owner's bank account.
    ///
    /// # Errors
    /// As [`Wallet::pay`].
    pub async fn deposit(
        &self,
        exchange_url: &str,
        amount: DepositAmount,
        payto: &str,
    ) -> Result<PaymentReceipt, WalletError> {
        let base_url = normalise_base_url(exchange_url)?;
        if matches!(amount, DepositAmount::All) {
            self.hasten_change().await?;
        }
        let start = |state: &WalletState, now, entropy: &mut dyn Entropy| {
            payment::start_deposit(state, &base_url, amount, payto, now, entropy)
        };
        let id = self.spend(start).await?;
        self.finish_payment(id).await
    }

    async fn finish_payment(&self, id: OpId) -> Result<PaymentReceipt, WalletError> {
        self.finish(id).await?;
        let failure = self.with_state(|state| match state.operation(id).map(|operation| &operation.kind) {
            Ok(OpKind::Payment(payment)) if payment.stage == PaymentStage::Failed => payment.reason.clone(),
            _ => None,
        });
        match failure {
            Some(message) => Err(WalletError::Failed { operation: id, message }),
            None => Ok(self.with_state(|state| payment::receipt(state, id))?),
        }
    }

    /// The receipt of an earlier payment.
    ///
    /// # Errors
    /// If there is no such payment, or it is not confirmed yet.
    pub fn receipt(&self, id: OpId) -> Result<PaymentReceipt, WalletError> {
        Ok(self.with_state(|state| payment::receipt(state, id))?)
    }

    /// Accepts a merchant's refund for contract `h_contract_terms`, and refreshes the coins. `None` if all
    /// permissions were already known.
    ///
    /// # Errors
    /// If the permissions do not belong to a payment of this wallet, or as [`Wallet::pay`].
    pub async fn refund(
        &self,
        h_contract_terms: &HashCode,
        permissions: &[RefundPermission],
    ) -> Result<Option<OpId>, WalletError> {
        let started = self.step(|state, now, _| {
            Ok(match refund::start(state, h_contract_terms, permissions, now)? {
                Some((id, changes)) => (Some(id), changes),
                None => (None, Vec::new()),
            })
        })?;
        if let Some(id) = started {
            self.finish(id).await?;
        }
        Ok(started)
    }

    /// Gives up a withdrawal that has received no money yet, a purchase, or a disputed payment. Money that arrives later
    /// stays in the reserve and returns to its sender when the reserve closes. Coins of the payment are
    /// refreshed. Money that was sent to somebody, and a request for money, are taken back with the next run
    /// if nobody has accepted or paid them.
    ///
    /// # Errors
    /// If it is none of these.
    pub fn cancel(&self, id: OpId) -> Result<(), WalletError> {
        self.step(|state, now, _| {
            let changes = match state.operation(id)?.kind {
                OpKind::Withdrawal(_) => withdraw::cancel(state, id, now)?,
                OpKind::Purchase(_) => pay::cancel(state, id, now)?,
                OpKind::PickUp(_) | OpKind::Refund(_) => refunds::cancel(state, id, now)?,
                OpKind::Tip(_) => tip::cancel(state, id, now)?,
                OpKind::PursePayment(_) => purse_payment::cancel(state, id)?,
                OpKind::PurseIncome(_) => income::cancel(state, id)?,
                _ => payment::cancel(state, id, now)?,
            };
            Ok(((), changes))
        })
    }
}
