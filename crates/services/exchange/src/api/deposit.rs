//! `POST /coins/$COIN_PUB/deposit` and `/batch-deposit`: coins pay a merchant.

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode, ShortHash};
use batzen_http::{Request, Response};
use batzen_protocol::api::exchange::{BatchDepositCoin, BatchDepositRequest, DepositRequest};
use batzen_protocol::api::field_error;
use batzen_protocol::limits::{BATCH_BODY_BYTES_MAX, DEPOSIT_COINS_MAX, SMALL_BODY_BYTES_MAX};
use batzen_protocol::signatures::{ExchangeConfirmDeposit, WalletCoinDeposit};
use batzen_protocol::{Amount, ErrorCode, Money, ParseError, Timestamp};
use batzen_tables::exchange::{DepositKey, Deposits, PaytoHash};

use super::check::{self, Checked, Presented, Window};
use super::response::{self, DenomOperation};
use super::{Table, body, endpoint, error, in_currency, large_body, malformed, money, path_value};
use super::{signing, text};
use crate::app::Exchange;
use crate::crypto::Check;
use crate::rules::{Deposit, DepositCoin, Deposited};

/// The hash of "no extension policy".
const NO_POLICY: HashCode = HashCode::from_bytes([0; 64]);
/// The hash of "no age commitment".
const NO_AGE: ShortHash = ShortHash::from_bytes([0; 32]);

pub(super) fn routes(table: Table) -> Table {
    table.post("/coins/:coin_pub/deposit", SMALL_BODY_BYTES_MAX, "deposit", endpoint!(single)).post(
        "/batch-deposit",
        BATCH_BODY_BYTES_MAX,
        "batch-deposit",
        endpoint!(batch),
    )
}

async fn single(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let coin_pub = path_value(request, "coin_pub", ErrorCode::EXCHANGE_GENERIC_COINS_INVALID_COIN_PUB)?;
    let body: DepositRequest = body(request)?;
    let coin = BatchDepositCoin {
        contribution: body.contribution,
        denom_pub_hash: body.denom_pub_hash,
        ub_sig: body.ub_sig,
        coin_pub,
        h_age_commitment: body.h_age_commitment,
        coin_sig: body.coin_sig,
    };
    let body = BatchDepositRequest {
        merchant_payto_uri: body.merchant_payto_uri,
        wire_salt: body.wire_salt,
        merchant_pub: body.merchant_pub,
        h_contract_terms: body.h_contract_terms,
        coins: vec![coin],
        timestamp: body.timestamp,
        refund_deadline: body.refund_deadline,
        wire_transfer_deadline: body.wire_transfer_deadline,
        policy: body.policy,
    };
    let (exchange_timestamp, exchange_pub, sigs) = deposit(app, body, false).await?;
    let exchange_sig = sigs.first().expect("one confirmation a coin");
    Ok(text::deposit_confirmation(exchange_timestamp, exchange_sig, &exchange_pub))
}

async fn batch(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let body: BatchDepositRequest = large_body(request).await?;
    if body.coins.is_empty() || body.coins.len() > DEPOSIT_COINS_MAX {
        return Err(error(ErrorCode::GENERIC_PARAMETER_MALFORMED, "coins"));
    }
    let (exchange_timestamp, exchange_pub, sigs) = deposit(app, body, true).await?;
    Ok(text::batch_deposit_confirmation(exchange_timestamp, &exchange_pub, &sigs))
}

async fn deposit(
    app: &Exchange,
    mut contract: BatchDepositRequest,
    batch: bool,
) -> Checked<(Timestamp, EddsaPublicKey, Vec<EddsaSignature>)> {
    let payto = check::merchant_payto(std::mem::take(&mut contract.merchant_payto_uri))?;
    let coins = std::mem::take(&mut contract.coins);
    let refund_deadline = contract.refund_deadline.unwrap_or(Timestamp::ZERO);
    if refund_deadline > contract.wire_transfer_deadline {
        return Err(error(ErrorCode::EXCHANGE_DEPOSIT_REFUND_DEADLINE_AFTER_WIRE_DEADLINE, ""));
    }
    if contract.wire_transfer_deadline.is_never() {
        return Err(error(ErrorCode::EXCHANGE_DEPOSIT_WIRE_DEADLINE_IS_NEVER, ""));
    }
    let (account, is_known) = app.account_hashes.of(&payto, &contract.wire_salt);
    let h_wire = account.h_wire;
    let keys = app.keys();
    let now = app.core.now();
    let mut presented = Vec::with_capacity(coins.len());
    let mut checks = Vec::with_capacity(2 * coins.len());
    let mut below_fee = false;
    let mut repeated = false;
    for (index, coin) in coins.iter().enumerate() {
        let contribution = contribution(app, &coin.contribution, batch.then_some(index))?;
        let denom = check::find_denomination(app, &keys, &coin.denom_pub_hash).await?;
        if contribution > denom.value {
            return Err(error(ErrorCode::EXCHANGE_GENERIC_AMOUNT_EXCEEDS_DENOMINATION_VALUE, ""));
        }
        if let Some(code) = check::denomination_problem(denom, Window::Deposit, now)
            && !repeated
        {
            if !response::aside(|| is_repetition(app, &contract, account.h_payto, &coins)).await? {
                let (h_denom_pub, operation) = (&coin.denom_pub_hash, DenomOperation::Deposit);
                return Err(response::denomination_unusable(app, &keys, h_denom_pub, operation, code).await);
            }
            repeated = true;
        }
        check::check_cipher(denom, check::signature_cipher(&coin.ub_sig))?;
        below_fee |= contribution < denom.fee_deposit;
        let h_age = check::age_hash(coin.h_age_commitment);
        let message = WalletCoinDeposit {
            h_contract_terms: contract.h_contract_terms,
            h_age_commitment: h_age.unwrap_or(NO_AGE),
            h_policy: NO_POLICY,
            h_wire,
            h_denom_pub: coin.denom_pub_hash,
            wallet_timestamp: contract.timestamp,
            refund_deadline,
            amount_with_fee: coin.contribution,
            deposit_fee: denom.fee_deposit.of(app.core.config.currency),
            merchant_pub: contract.merchant_pub,
        };
        let coin_sig = coin.coin_sig;
        let coin = Presented {
            coin_pub: coin.coin_pub,
            denom: denom.serial,
            denom_pub: denom.public.clone(),
            h_age,
            denom_sig: coin.ub_sig.clone(),
        };
        checks.push(coin.check());
        checks.push(Check::eddsa(coin.coin_pub, &message, coin_sig));
        presented.push(DepositCoin { coin: coin.into_rule(), contribution, coin_sig });
    }
    let coin_pubs: Vec<EddsaPublicKey> = presented.iter().map(|coin| coin.coin.coin_pub).collect();
    verify(app, checks, &coin_pubs, below_fee, contract.policy.is_some(), batch).await?;
    if !is_known {
        app.account_hashes.remember(&payto, &contract.wire_salt, account);
    }
    let command = Deposit {
        merchant_pub: contract.merchant_pub,
        h_contract_terms: contract.h_contract_terms,
        h_payto: account.h_payto,
        payto_uri: payto.into_string(),
        wire_salt: contract.wire_salt,
        wallet_time: contract.timestamp,
        refund_deadline,
        wire_deadline: contract.wire_transfer_deadline,
        coins: presented,
    };
    let deposited = app.decide(&keys, DenomOperation::Deposit, command, batch).await?;
    app.core.metrics.success.deposit.add(deposited.coins.iter().filter(|coin| !coin.repeated).count() as u64);
    confirm(app, deposited, &coin_pubs, h_wire, &contract).await
}

/// The contribution of a coin; `index` is its place in a batch.
fn contribution(app: &Exchange, amount: &Amount, index: Option<usize>) -> Checked<Money> {
    let Some(index) = index else { return money::<DepositRequest>(app, amount, "contribution") };
    in_currency(app, amount).map_err(|error| {
        let element = Some((index, "contribution".to_owned()));
        malformed(&ParseError { element, ..field_error::<BatchDepositRequest>("coins", error.to_string()) })
    })
}

/// Returns whether all these deposits were accepted before. A repetition is confirmed even if its
/// denominations have expired or were revoked since: a merchant whose answer was lost must learn that the
/// coins have paid. The rules compare everything else.
async fn is_repetition(
    app: &Exchange,
    contract: &BatchDepositRequest,
    h_payto: PaytoHash,
    coins: &[BatchDepositCoin],
) -> Checked<bool> {
    let (merchant_pub, h_contract_terms) = (contract.merchant_pub, contract.h_contract_terms);
    let keys: Vec<_> = coins
        .iter()
        .map(|coin| DepositKey { coin_pub: coin.coin_pub, merchant_pub, h_contract_terms })
        .collect();
    let found =
        app.core.read(move |store| store.get_many::<Deposits>(&keys)).await.map_err(response::store)?;
    Ok(found.iter().zip(coins).all(|(found, coin)| {
        found
            .as_ref()
            .is_some_and(|found| found.row.coin_sig == coin.coin_sig && found.row.h_payto == h_payto)
    }))
}

/// Checks two signatures per coin, the denomination's and then the coin's, in the order of the protocol's
/// error table.
async fn verify(
    app: &Exchange,
    checks: Vec<Check>,
    coin_pubs: &[EddsaPublicKey],
    below_fee: bool,
    has_policy: bool,
    batch: bool,
) -> Checked<()> {
    let verdicts = signing::checked(app, checks).await?;
    if verdicts.iter().step_by(2).any(|valid| !valid) {
        return Err(error(ErrorCode::EXCHANGE_DENOMINATION_SIGNATURE_INVALID, ""));
    }
    if below_fee {
        return Err(error(ErrorCode::EXCHANGE_DEPOSIT_NEGATIVE_VALUE_AFTER_FEE, ""));
    }
    if has_policy {
        return Err(error(
            ErrorCode::EXCHANGE_DEPOSITS_POLICY_NOT_ACCEPTED,
            "no policy extension is enabled",
        ));
    }
    if let Some(index) = verdicts.iter().skip(1).step_by(2).position(|valid| !valid) {
        let detail = if batch { coin_pubs[index].to_string() } else { String::new() };
        return Err(error(ErrorCode::EXCHANGE_DEPOSIT_COIN_SIGNATURE_INVALID, &detail));
    }
    Ok(())
}

/// Signs the confirmations again; they are not stored.
async fn confirm(
    app: &Exchange,
    deposited: Deposited,
    coin_pubs: &[EddsaPublicKey],
    h_wire: HashCode,
    contract: &BatchDepositRequest,
) -> Checked<(Timestamp, EddsaPublicKey, Vec<EddsaSignature>)> {
    let exchange_timestamp = deposited.exchange_time;
    let currency = app.core.config.currency;
    let messages: Vec<_> = deposited
        .coins
        .iter()
        .zip(coin_pubs)
        .map(|(coin, coin_pub)| ExchangeConfirmDeposit {
            h_contract_terms: contract.h_contract_terms,
            h_wire,
            h_policy: NO_POLICY,
            exchange_timestamp,
            wire_deadline: coin.wire_deadline,
            refund_deadline: contract.refund_deadline.unwrap_or(Timestamp::ZERO),
            amount_without_fee: Amount::new(currency, coin.amount_without_fee),
            coin_pub: *coin_pub,
            merchant_pub: contract.merchant_pub,
        })
        .collect();
    let (exchange_pub, signatures) = signing::sign_online(app, &messages).await?;
    Ok((exchange_timestamp, exchange_pub, signatures))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<'a, F: Future>(_: impl FnOnce(&'a Exchange, &'a mut Request) -> F) -> usize {
        size_of::<F>()
    }

    /// Every request's future is moved to the heap when it begins. What only few requests need is kept
    /// [aside](response::aside).
    #[test]
    fn the_futures_are_small() {
        assert!(bytes(single) <= FUTURE_BYTES_MAX, "{}", bytes(single));
        assert!(bytes(batch) <= FUTURE_BYTES_MAX, "{}", bytes(batch));
    }

    const FUTURE_BYTES_MAX: usize = 4 << 10;
}
