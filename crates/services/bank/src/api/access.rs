//! The bank access API, for the bank's customers.

use std::sync::Arc;

use batzen_crypto::base32;
use batzen_http::{ErrorCode, Request, Response};
use batzen_protocol::api::bank::{
    AccountBalance, AccountInfo, CreateWithdrawalRequest, CreateWithdrawalResponse, CreditDebit, Empty,
    PublicAccounts, RegisterRequest, WithdrawalInfo,
};
use batzen_service::{Answer, Reach, endpoint};
use batzen_tables::bank::AccountRow;

use super::{SMALL_BODY_BYTES, Service, Table, body, refused, unknown_account, wrong_member};
use crate::MAX_BODY_BYTES;
use crate::names;
use crate::password::PASSWORD_BYTES_MAX;
use crate::rules::{AbortWithdrawal, ConfirmWithdrawal, CreateWithdrawal, Refusal, Register, Selection};

pub(super) fn routes(table: Table) -> Table {
    table
        .reaching(Reach::Everyone, |table| {
            table.get("/taler-bank-access/config", "config", endpoint!(config)).get(
                "/taler-bank-access/public-accounts",
                "account",
                endpoint!(public_accounts),
            )
        })
        .post("/taler-bank-access/testing/register", MAX_BODY_BYTES, "account", endpoint!(register))
        .get("/taler-bank-access/accounts/:account", "account", endpoint!(account_status))
        .post(
            "/taler-bank-access/accounts/:account/withdrawals",
            SMALL_BODY_BYTES,
            "withdrawal",
            endpoint!(create_withdrawal),
        )
        .get(
            "/taler-bank-access/accounts/:account/withdrawals/:wid",
            "withdrawal",
            endpoint!(withdrawal_details),
        )
        .post(
            "/taler-bank-access/accounts/:account/withdrawals/:wid/confirm",
            SMALL_BODY_BYTES,
            "withdrawal",
            endpoint!(confirm_withdrawal),
        )
        .post(
            "/taler-bank-access/accounts/:account/withdrawals/:wid/abort",
            SMALL_BODY_BYTES,
            "withdrawal",
            endpoint!(abort_withdrawal),
        )
}

impl Service {
    /// Confirms a customer's own operation.
    pub(super) async fn confirm(self: &Arc<Self>, account: &str, text: &str) -> Answer {
        // A selection is made at most once, so a second read finds it if the first came too early.
        for _ in 0..2 {
            let (wopid, row) = self.operation(text).await?;
            let command =
                ConfirmWithdrawal { wopid, account: account.to_owned(), selection: Selection::of(&row) };
            match self.execute(command).await? {
                Ok(()) => return Ok(Response::json(200, &Empty {})),
                Err(Refusal::Unresolved) => {}
                Err(refusal) => return Err(refused(&refusal, text)),
            }
        }
        Err(refused(&Refusal::Unresolved, ""))
    }

    /// Aborts a customer's own operation.
    pub(super) async fn abort(self: &Arc<Self>, account: &str, text: &str) -> Answer {
        let (wopid, _) = self.operation(text).await?;
        match self.execute(AbortWithdrawal { wopid, account: account.to_owned() }).await? {
            Ok(()) => Ok(Response::json(200, &Empty {})),
            Err(refusal) => Err(refused(&refusal, text)),
        }
    }
}

async fn config(bank: &Service, _: &Request) -> Response {
    bank.api_config("taler-bank-access")
}

async fn public_accounts(_: &Service, _: &Request) -> Response {
    Response::json(200, &PublicAccounts { public_accounts: Vec::new() })
}

async fn register(bank: &Arc<Service>, request: &Request) -> Answer {
    let RegisterRequest { username: name, password } = body(request)?;
    if !bank.addresses.is_new_name(&name) {
        return Err(wrong_member::<RegisterRequest>("username"));
    }
    if password.is_empty() || password.len() > PASSWORD_BYTES_MAX {
        return Err(wrong_member::<RegisterRequest>("password"));
    }
    let password_hash = match bank.find_account(&name).await? {
        // With password checks, registration must not reveal whether a password is right: it does not
        // even look at it.
        Some(_) if bank.settings.config.check_passwords => {
            return Err(refused(&Refusal::RegisterConflict, ""));
        }
        Some(AccountRow { password_hash: Some(stored), .. }) => {
            match bank.check_password(request, &name, &password).await {
                // Another password may have replaced it meanwhile.
                Ok(()) => bank.find_account(&name).await?.and_then(|row| row.password_hash).unwrap_or(stored),
                Err(response) if response.status == 403 => {
                    return Err(refused(&Refusal::RegisterConflict, ""));
                }
                Err(response) => return Err(response),
            }
        }
        _ => bank.hash_password(name.clone(), password).await?,
    };
    match bank.execute(Register { name, password_hash }).await? {
        Ok(()) => Ok(Response::empty(204)),
        Err(refusal) => Err(refused(&refusal, "")),
    }
}

async fn account_status(bank: &Service, request: &Request) -> Answer {
    let name = request.param("account");
    bank.authorize(request, name).await?;
    let account = bank.account(name).await?;
    let (overdrawn, size) = bank.balances(&account).await?.balance();
    let amount = bank.amount(size);
    let credit_debit_indicator = if overdrawn { CreditDebit::Debit } else { CreditDebit::Credit };
    let balance = AccountBalance { credit_debit_indicator, amount };
    Ok(Response::json(200, &AccountInfo { payto_uri: bank.payto(name), balance }))
}

async fn create_withdrawal(bank: &Arc<Service>, request: &Request) -> Answer {
    let account = request.param("account");
    bank.authorize(request, account).await?;
    let CreateWithdrawalRequest { amount } = body(request)?;
    let amount = bank.money::<CreateWithdrawalRequest>("amount", &amount)?;
    if !names::is_account_name(account) {
        return Err(unknown_account(account));
    }
    let mut wopid = [0; 32];
    batzen_crypto::fill_random(&mut wopid);
    match bank.execute(CreateWithdrawal { wopid, account: account.to_owned(), amount }).await? {
        Ok(()) => {
            let withdrawal_id = base32::encode(&wopid);
            let taler_withdraw_uri = withdraw_uri(&bank.settings.base_url, &withdrawal_id);
            Ok(Response::json(200, &CreateWithdrawalResponse { taler_withdraw_uri, withdrawal_id }))
        }
        Err(refusal) => Err(refused(&refusal, "")),
    }
}

async fn withdrawal_details(bank: &Service, request: &Request) -> Answer {
    let account = request.param("account");
    let text = request.param("wid");
    bank.authorize(request, account).await?;
    let (_, row) = bank.operation(text).await?;
    bank.account(account).await?;
    if row.account != account {
        return Err(Response::error(ErrorCode::BANK_TRANSACTION_NOT_FOUND, text));
    }
    Ok(Response::json(
        200,
        &WithdrawalInfo {
            aborted: row.aborted,
            selection_done: row.reserve_pub.is_some(),
            transfer_done: row.row_id.is_some(),
            amount: bank.amount(row.amount),
            selected_exchange_account: row.exchange_account.as_deref().map(|name| bank.payto(name)),
            selected_reserve_pub: row.reserve_pub,
        },
    ))
}

async fn confirm_withdrawal(bank: &Arc<Service>, request: &Request) -> Answer {
    let account = request.param("account");
    let text = request.param("wid");
    bank.authorize(request, account).await?;
    bank.confirm(account, text).await
}

async fn abort_withdrawal(bank: &Arc<Service>, request: &Request) -> Answer {
    let account = request.param("account");
    let text = request.param("wid");
    bank.authorize(request, account).await?;
    bank.abort(account, text).await
}

/// The URI that leads a wallet to a withdrawal operation.
pub(super) fn withdraw_uri(base_url: &str, withdrawal_id: &str) -> String {
    let (scheme, rest) = match base_url.strip_prefix("https://") {
        Some(rest) => ("taler", rest),
        None => ("taler+http", base_url.strip_prefix("http://").unwrap_or(base_url)),
    };
    format!("{scheme}://withdraw/{rest}taler-bank-integration/{withdrawal_id}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn withdraw_uris_name_the_integration_api() {
        for (base_url, api_base) in [
            ("http://localhost:8082/", "http://localhost:8082/taler-bank-integration/"),
            ("https://bank.test/shop/", "https://bank.test/shop/taler-bank-integration/"),
        ] {
            let uri = withdraw_uri(base_url, "W7Q");
            let parsed = batzen_protocol::TalerUri::parse(&uri).unwrap();
            let text = format!("{parsed:?}");
            assert!(text.contains(api_base) && text.contains("W7Q"), "{uri} is {text}");
        }
    }
}
