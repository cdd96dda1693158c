//! The step in which the exchange wants to know a customer before it hands out more coins, and a clerk decides.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use batzen_crypto::hash::sha512;
use batzen_crypto::{base32, fill_random};
use batzen_exchange::config::{KycConfig, KycLogicConfig, KycOfficerConfig, KycProviderConfig};
use batzen_exchange::rules::{KycOperation, KycProvider, KycRule, KycRules, KycUserType};
use batzen_protocol::{Duration, Money};
use batzen_wallet::core::OpId;
use batzen_wallet::{CipherChoice, Wallet};
use serde_json::{Value, json};

use super::cycle::{PATIENCE, Round};
use super::report::StepSummary;
use super::world::CUSTOMER;

/// The officer's name.
const CLERK: &str = "clerk";
const SECTION: &str = "kyc-provider-clerk";
/// The sum that a customer may withdraw within a minute without being known.
pub(super) const THRESHOLD: &str = "500";
/// The sum that the step withdraws.
const WISH: &str = "600";

/// Limits of the demo's exchange: whoever withdraws much at once fills in a form, and the clerk decides.
pub(super) fn limits(dir: &Path, token: &str) -> anyhow::Result<KycConfig> {
    let checks = || vec!["name".to_owned()];
    let threshold: Money = THRESHOLD.parse().context("threshold")?;
    let rule = KycRule {
        operation: KycOperation::Withdraw,
        checks: checks(),
        threshold,
        timeframe: Duration::from_secs(60),
    };
    let provider = KycProvider {
        section: SECTION.to_owned(),
        cost: 0,
        user_type: KycUserType::Individual,
        checks: checks(),
    };
    let logic = KycLogicConfig::Manual { post_url: None };
    Ok(KycConfig {
        rules: KycRules { rules: vec![rule], providers: vec![provider] },
        providers: vec![KycProviderConfig {
            section: SECTION.to_owned(),
            validity: Duration::from_days(365),
            logic,
        }],
        officers: vec![KycOfficerConfig { name: CLERK.to_owned(), token_hash: sha512(token.as_bytes()) }],
        attributes_key_file: dir.join("exchange").join("kyc-attributes.key"),
    })
}

/// The file with the clerk's token.
pub(super) fn token_file(dir: &Path) -> PathBuf {
    dir.join("clerk.token")
}

/// The clerk's token: that of an earlier run, or a new one.
pub(super) fn token(dir: &Path) -> anyhow::Result<String> {
    let path = token_file(dir);
    let context = || path.display().to_string();
    match std::fs::read_to_string(&path) {
        Ok(token) if !token.trim().is_empty() => return Ok(token.trim().to_owned()),
        // An earlier run was killed before it had written anything.
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(context),
    }
    let mut random = [0; 32];
    fill_random(&mut random);
    let token = base32::encode(&random);
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
    let file = file.as_mut().map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
    writeln!(file, "{token}").with_context(context)?;
    Ok(token)
}

impl Round<'_> {
    /// Somebody withdraws more than strangers may, is stopped, fills in the form, and goes on after the clerk's
    /// approval.
    pub(super) async fn identify(&self) -> anyhow::Result<((), StepSummary)> {
        // Everybody starts with the same play money, which would not last for a second round.
        let name = format!("{CUSTOMER}{}", self.world.run);
        let wallet = self.world.wallet(&name)?;
        wallet.add_exchange(self.exchange_url).await?;
        wallet.accept_terms(self.exchange_url)?;
        let (bank_url, amount) = (&self.world.bank.base_url, self.amount(WISH)?);
        let exchange = Some(self.exchange_url);
        let id =
            wallet.withdraw_from_bank(bank_url, &name, &name, amount, exchange, CipherChoice::Rsa).await?;
        let page = page_of(&wallet, id).await?;
        ensure!(wallet.coins().is_empty(), "coins were handed out to a stranger");
        let waiting = {
            let wallet = wallet.clone();
            tokio::spawn(async move { wallet.finish_within(id, PATIENCE).await })
        };
        self.fill_in(&page).await?;
        let approved = self.decide().await?;
        waiting.await??;
        let count = wallet.coins().len();
        let summary = format!(
            "{amount} were too much for a stranger; the clerk approved {approved}, and {count} coins came"
        );
        Ok(((), StepSummary { count, summary }))
    }

    /// Sends the form of the exchange's page for the customer.
    async fn fill_in(&self, page: &str) -> anyhow::Result<()> {
        let (path, query) = page.split_once('?').context("the page has no customer")?;
        let field = |wanted: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.find(|(name, _)| *name == wanted).map(|(_, value)| value.to_owned()).context("a field")
        };
        let body = json!({
            "account": field("account")?, "token": field("token")?,
            "attributes": {
                "full_name": "Frank Example", "birthdate": "1990-02-03", "address": "Marktgasse 1, Bern",
                "country": "Switzerland", "nationality": "Swiss", "document_number": "X1234567",
            },
        });
        self.world.client.post_json(path, &body).await?.ok::<Value>()?;
        Ok(())
    }

    /// The clerk approves what waits. Returns whom.
    async fn decide(&self) -> anyhow::Result<String> {
        let bearer = format!("Bearer {}", self.world.officer_token);
        let url = |path: &str| format!("{}kyc-officer/{path}", self.exchange_url);
        let call = self.world.client.get(url("cases")).header("authorization", &bearer);
        let cases: Value = call.send().await?.ok()?;
        let case = cases["cases"].as_array().and_then(|cases| cases.last()).context("no case waits")?;
        let wish = json!({
            "h_payto": case["h_payto"], "provider": case["provider"], "case": case["case"],
            "approved": true, "reason": "saw the passport",
        });
        let call = self.world.client.post(url("decisions")).header("authorization", &bearer).json(&wish);
        let answer: Value = call.send().await?.ok()?;
        ensure!(
            answer["outcome"] == "approved",
            "the clerk's approval had the outcome {}",
            answer["outcome"]
        );
        Ok(case["attributes"]["full_name"].as_str().unwrap_or_default().to_owned())
    }
}

/// The page on which the wallet asks its user to say who she is.
async fn page_of(wallet: &Wallet, id: OpId) -> anyhow::Result<String> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let pending = wallet.run_pending().await?.pending;
        let message =
            pending.into_iter().find(|operation| operation.id == id).and_then(|found| found.message);
        let words = message.unwrap_or_default();
        if let Some(url) = words.split_whitespace().find(|word| word.contains("/kyc-form/")) {
            return Ok(url.to_owned());
        }
        ensure!(tokio::time::Instant::now() < deadline, "the withdrawal was not stopped: {words}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}
