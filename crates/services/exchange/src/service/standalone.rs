//! An exchange that sets itself up: it runs the offline workflow over the same HTTP calls, with a master key
//! on its own machine. For demos, tests and small installations.

use std::collections::BTreeSet;

use batzen_http::Bound;
use batzen_http::client::{Client, ClientError, ClientOptions};
use batzen_protocol::api::exchange::WireResponse;
use batzen_protocol::api::offline::OfflineOperation;
use batzen_protocol::payto::PaytoUri;
use batzen_protocol::time::year_of;

use crate::app::Exchange;
use crate::keys::keeper::SetupError;
use crate::keys::{KeyError, load_or_create_eddsa};
use crate::offline::{self, GlobalFeeTerms, ModuleKeys, OfflineConfig};

/// Completes the set-up over HTTP. Repeating it changes nothing.
///
/// # Errors
/// The first step that fails; the next run starts over.
pub(crate) async fn set_up(app: &Exchange) -> Result<(), SetupError> {
    let Some(config) = &app.core.config.standalone else { return Ok(()) };
    let master = load_or_create_eddsa(&config.master_priv_file).map_err(KeyError::from)?;
    let client = Client::new(&ClientOptions::default())?;
    let base_url = local_url(&app.bound).ok_or(SetupError::NoPort)?;
    let base_url = base_url.as_str();
    let (now, currency) = (app.core.now(), app.core.config.currency);

    let keys = offline::download(&client, base_url).await?;
    if !keys.future_denoms.is_empty() || !keys.future_signkeys.is_empty() {
        let offline_config = OfflineConfig {
            currency,
            base_url: Some(base_url.to_owned()),
            master_public_key: Some(master.public_key()),
            master_priv_file: config.master_priv_file.clone(),
            secm_tofu_file: Some(config.secm_tofu_file.clone()),
            pinned_rsa: None,
            pinned_cs: None,
            pinned_eddsa: None,
            age_restriction: app.core.config.age_restriction.clone(),
        };
        offline::check_modules(&offline_config, &ModuleKeys::announced(&keys))?;
        let signatures = OfflineOperation::UploadSigs(offline::sign_keys(&master, &keys)?);
        offline::upload(&client, base_url, &signatures).await?;
    }

    let reply = client.get_json(format!("{base_url}wire")).await?;
    let listed: BTreeSet<String> = match reply.status {
        200 => reply.json::<WireResponse>()?.accounts.into_iter().map(|account| account.payto_uri).collect(),
        // No account is published yet.
        _ => BTreeSet::new(),
    };
    let mut methods = BTreeSet::new();
    for account in &app.core.config.accounts {
        if let Ok(payto) = PaytoUri::parse(account.payto_uri.as_str()) {
            methods.insert(payto.method().to_owned());
        }
        if !listed.contains(&account.payto_uri) {
            let operation = offline::enable_wire(&master, &account.payto_uri, now)?;
            offline::upload(&client, base_url, &operation).await?;
        }
    }

    let fees = &config.fees;
    let this_year = year_of(now).unwrap_or(1970);
    for year in [this_year, this_year + 1] {
        let period = offline::year(Some(year), now)?;
        for method in &methods {
            let (wire, closing) = (fees.wire.of(currency), fees.closing.of(currency));
            let operation = offline::wire_fee(&master, currency, period, method, wire, closing)?;
            upload_fee(&client, base_url, &operation).await?;
        }
        let terms = GlobalFeeTerms {
            history_fee: fees.history.of(currency),
            account_fee: fees.account.of(currency),
            purse_fee: fees.purse.of(currency),
            purse_timeout: fees.purse_timeout,
            history_expiration: fees.history_expiration,
            purse_account_limit: fees.purse_account_limit,
        };
        upload_fee(&client, base_url, &offline::global_fee(&master, currency, period, &terms)?).await?;
    }

    if let Some(extension) = &app.core.config.age_restriction {
        let operation = offline::extensions(&master, Some(extension))?;
        offline::upload(&client, base_url, &operation).await?;
    }
    Ok(())
}

/// Signed fees stay in force until the end of their year, even if the configuration has changed.
async fn upload_fee(
    client: &Client,
    base_url: &str,
    operation: &OfflineOperation,
) -> Result<(), ClientError> {
    match offline::upload(client, base_url, operation).await {
        Err(ClientError::Status { status: 409, .. }) => {
            tracing::warn!("other fees are published for this period already; they stay");
            Ok(())
        }
        other => other.map(|_| ()),
    }
}

/// The exchange's local address, independent of its public URL.
fn local_url(bound: &Bound) -> Option<String> {
    let port = bound.port()?;
    match bound {
        Bound::Tcp(address) if !address.ip().is_unspecified() => Some(format!("http://{address}/")),
        _ => Some(format!("http://127.0.0.1:{port}/")),
    }
}
