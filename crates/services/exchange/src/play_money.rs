//! An exchange for demos: its denominations, its fees, its account at a test bank.

use std::path::Path;

use crate::config::{
    AgeRestrictionConfig, CipherConfig, CoinFees, ExchangeConfig, GatewayAuth, GatewayConfig, ListenConfig,
    WorkersConfig,
};
use batzen_http::client::{Client, ClientError};
use batzen_protocol::api::bank::RegisterRequest;
use batzen_protocol::{Currency, Duration, Money};

/// The values of the coins, largest first.
const VALUES: [&str; 8] = ["10", "5", "2", "1", "0.5", "0.2", "0.1", "0.01"];

/// The values of the coins with age groups.
const AGE_VALUES: [&str; 4] = ["5", "1", "0.1", "0.01"];

/// The exchange's fee for a transfer to a merchant, and for closing a reserve.
const WIRE_FEE: &str = "0.01";

fn money(text: &str) -> Money {
    text.parse().expect("a constant amount")
}

/// Small fees of every kind, so that each of them appears in the books.
fn fees(value: Money) -> CoinFees {
    if value < money("0.1") {
        let fee = money("0.001");
        return CoinFees { withdraw: fee, deposit: fee, refresh: fee, refund: fee };
    }
    CoinFees {
        withdraw: money("0.001"),
        deposit: money("0.002"),
        refresh: money("0.003"),
        refund: money("0.002"),
    }
}

/// A stand-alone exchange with play money that keeps everything below `dir/exchange`.
///
/// With `with_ages` it also offers the values of `AGE_VALUES` with age groups, for pocket money. With
/// `with_cs` it also offers every value in Clause Blind Schnorr. The GNU Taler wallet of December 2022
/// selects such coins and then waits forever, so they are optional.
pub fn exchange_config(
    currency: Currency,
    dir: &Path,
    port: u16,
    rsa_bits: u32,
    with_cs: bool,
    with_ages: bool,
) -> ExchangeConfig {
    let mut config = ExchangeConfig::local(currency, dir, port);
    config.listen = ListenConfig::Tcp { host: Some("127.0.0.1".into()), port };
    config.base_url = format!("http://localhost:{port}/");
    // The default of a minute is too long for a demo.
    let pause = Duration::from_secs(1);
    config.workers = WorkersConfig {
        aggregator_idle_sleep: pause,
        closer_idle_sleep: pause,
        expire_idle_sleep: pause,
        transfer_idle_sleep: pause,
        wirewatch_idle_sleep: Duration::from_micros(200_000),
        ..config.workers
    };
    if let Some(standalone) = &mut config.standalone {
        standalone.fees.wire = money(WIRE_FEE);
        standalone.fees.closing = money(WIRE_FEE);
    }
    if with_ages {
        config.age_restriction = AgeRestrictionConfig::parse(AgeRestrictionConfig::DEFAULT_GROUPS);
    }
    let restricted = AGE_VALUES.iter().filter(|_| with_ages).map(|text| (text, true));
    for (text, is_restricted) in VALUES.iter().map(|text| (text, false)).chain(restricted) {
        let value = money(text);
        let name = format!(
            "coin_{}_{}{}",
            currency.as_str().to_lowercase(),
            text.replace('.', "_"),
            if is_restricted { "_ages" } else { "" }
        );
        let first = config.coins.len();
        let rsa = CipherConfig::Rsa { bits: rsa_bits };
        config = config.with_coin(&format!("{name}_rsa{rsa_bits}"), value, fees(value), rsa);
        if with_cs {
            config = config.with_coin(&format!("{name}_cs"), value, fees(value), CipherConfig::Cs);
        }
        for coin in &mut config.coins[first..] {
            coin.age_restricted = is_restricted;
        }
    }
    config
}

/// The exchange's account `name` at the test bank `bank_url` (with final slash), in the form that
/// `with_account` takes.
pub fn account(bank_url: &str, hostname: &str, name: &str) -> (String, GatewayConfig) {
    let payto = format!("payto://x-taler-bank/{hostname}/{name}?receiver-name={name}");
    let url = format!("{bank_url}taler-wire-gateway/{name}/");
    (payto, GatewayConfig { url, auth: GatewayAuth::None })
}

/// Opens an account at a test bank; an existing one stays as it is.
///
/// # Errors
/// When the bank does not answer, or is not a test bank.
pub async fn open_account(
    client: &Client,
    bank_url: &str,
    name: &str,
    password: &str,
) -> Result<(), ClientError> {
    let request = RegisterRequest { username: name.to_owned(), password: password.to_owned() };
    let reply = client.post_json(format!("{bank_url}taler-bank-access/testing/register"), &request).await?;
    reply.expect(&[200, 202, 204, 409]).map(|_| ())
}

/// Opens the accounts of an exchange at test banks. Other banks do not know the call, so nothing happens
/// there.
pub async fn open_accounts(client: &Client, config: &ExchangeConfig) {
    for account in &config.accounts {
        let Some(gateway) = &account.gateway else { continue };
        let Some((bank_url, rest)) = gateway.url.split_once("taler-wire-gateway/") else { continue };
        let password = match &gateway.auth {
            GatewayAuth::Basic { password, .. } => password.clone(),
            GatewayAuth::None => "exchange".to_owned(),
        };
        if let Err(error) = open_account(client, bank_url, rest.trim_end_matches('/'), &password).await {
            tracing::info!(%error, account = %account.payto_uri, "account not opened by this program");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_valid() {
        let currency = "KUDOS".parse().unwrap();
        for (with_cs, with_ages) in [(false, false), (true, false), (false, true), (true, true)] {
            let config = exchange_config(currency, Path::new("/x"), 8081, 2048, with_cs, with_ages);
            config.validate().unwrap();
            let is_cs = |cipher: &CipherConfig| matches!(cipher, CipherConfig::Cs);
            let cs = config.coins.iter().filter(|coin| is_cs(&coin.cipher)).count();
            let values = if with_ages { 12 } else { 8 };
            assert_eq!((config.coins.len() - cs, cs), (values, if with_cs { values } else { 0 }));
            let restricted = config.coins.iter().filter(|coin| config.age_mask(coin) != 0).count();
            assert_eq!(restricted, if with_ages { config.coins.len() / 3 } else { 0 });
        }
    }
}
