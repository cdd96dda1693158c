//! The offline tool against a running exchange: two machines, documents carried between them.

use batzen_crypto::EddsaPrivateKey;
use batzen_exchange::config::AgeRestrictionConfig;
use batzen_exchange::offline::{Offline, OfflineConfig, OfflineError};
use batzen_protocol::api::exchange::WireResponse;
use batzen_protocol::api::offline::OfflineOperation;

use crate::keys::caching::check_keys;
use crate::keys::management::earn;
use crate::keys::support::{PAYTO, Site, code, operated};

/// Damages a document.
type Edit = fn(&mut serde_json::Value);

struct Tool {
    config: OfflineConfig,
    said: String,
}

impl Tool {
    fn new(site: &Site) -> Self {
        let directory = site.directory.path().join("vault");
        Self {
            config: OfflineConfig {
                currency: site.running.app().core.config.currency,
                base_url: Some(site.running.base_url().into()),
                master_public_key: Some(site.master_pub()),
                master_priv_file: directory.join("master.priv"),
                secm_tofu_file: Some(directory.join("tofu")),
                pinned_rsa: None,
                pinned_cs: None,
                pinned_eddsa: None,
                age_restriction: AgeRestrictionConfig::parse("10:18"),
            },
            said: String::new(),
        }
    }

    /// Runs a command line with a document on standard input and returns its standard output.
    async fn run(&mut self, site: &Site, line: &str, input: &str) -> Result<String, OfflineError> {
        let arguments: Vec<String> =
            line.split('|').flat_map(|words| words.split(' ')).map(str::to_owned).collect();
        let said = &mut self.said;
        let mut tool = Offline {
            config: self.config.clone(),
            say: &mut |text| {
                said.push_str(text);
                said.push('\n');
            },
            input: &mut || Ok(input.to_owned()),
            now: site.clock.now(),
        };
        let outcome = tool.run(&arguments).await?;
        Ok(outcome.reports.concat() + &outcome.to_json().unwrap_or_default())
    }
}

async fn site() -> (Site, EddsaPrivateKey) {
    let master = EddsaPrivateKey::generate();
    let site = Site::with(|directory| {
        std::fs::create_dir_all(directory.join("vault")).unwrap();
        std::fs::write(directory.join("vault/master.priv"), master.as_bytes()).unwrap();
        let mut config = operated(directory, &master);
        config.age_restriction = AgeRestrictionConfig::parse("10:18");
        config
    })
    .await;
    (site, master)
}

#[tokio::test]
async fn a_usable_exchange_in_one_line_each() {
    let (site, _) = site().await;
    let mut tool = Tool::new(&site);
    assert_eq!(tool.run(&site, "download sign upload", "").await.unwrap(), "");
    for words in [
        "value TESTKUDOS:1",
        "RSA",
        "COIN_A",
        "CS",
        "Fri, 20 Nov 2026 00:00:00 GMT",
        "signing key",
        "uploaded",
    ] {
        assert!(tool.said.contains(words), "{words}: {}", tool.said);
    }
    let lines = [
        format!("enable-account {PAYTO} upload"),
        "wire-fee now x-taler-bank TESTKUDOS:0.01 TESTKUDOS:0.02 upload".into(),
        "wire-fee 2027 x-taler-bank TESTKUDOS:0.01 TESTKUDOS:0.02 upload".into(),
        "global-fee now TESTKUDOS:0.03 TESTKUDOS:0.04 TESTKUDOS:0 1h 1year 5 upload".into(),
        "extensions sign upload".into(),
    ];
    for _ in 0..2 {
        for line in &lines {
            assert_eq!(tool.run(&site, line, "").await.unwrap(), "", "{line}");
        }
    }
    // It is November: the next year's global fees are missing.
    assert!(tool.said.contains("batzen exchange offline global-fee 2027 TESTKUDOS:0.03"), "{}", tool.said);
    let keys = site.keys().await;
    check_keys(&keys);
    assert_eq!(keys.global_fees.len(), 1);
    assert!(keys.extensions_sig.is_some());
    let wire: WireResponse = site.get("wire").await.ok().unwrap();
    assert_eq!(wire.fees["x-taler-bank"].len(), 2);

    let auditor = EddsaPrivateKey::generate().public_key();
    tool.run(&site, &format!("enable-auditor {auditor} http://auditor/ Auditor upload"), "").await.unwrap();
    assert_eq!(site.keys().await.auditors.len(), 1);
    tool.run(&site, &format!("disable-auditor {auditor} upload"), "").await.unwrap();
    assert!(site.keys().await.auditors.is_empty());
    let victim = keys.denoms[0].denom_pub.h_denom_pub();
    tool.run(&site, &format!("revoke-denomination {victim} upload"), "").await.unwrap();
    assert_eq!(site.keys().await.recoup.unwrap().len(), 1);
    site.settle().await;
    tool.run(&site, "download sign upload", "").await.unwrap();
    assert_eq!(site.keys().await.denoms.len(), keys.denoms.len());
    let drain = format!("drain TESTKUDOS:1 exchange-account-1 {PAYTO} upload");
    let refused = tool.run(&site, &drain, "").await.unwrap_err().to_string();
    assert!(refused.contains("only profit can be paid out: TESTKUDOS:0 was earned"), "{refused}");
    earn(&site, "100", "1").await;
    tool.run(&site, &drain, "").await.unwrap();
    tool.run(&site, &format!("disable-account {PAYTO} upload"), "").await.unwrap();
    assert_eq!(code(&site.get("wire").await), 1651);
    site.stop().await;
}

#[tokio::test]
async fn documents_are_signed_on_an_offline_machine() {
    let (site, _) = site().await;
    let mut tool = Tool::new(&site);
    let downloaded = tool.run(&site, "download", "").await.unwrap();
    assert!(downloaded.contains("exchange-input-keys-0"));
    // The signing machine has no network.
    tool.config.base_url = None;
    let calendar = tool.run(&site, "calendar --json", &downloaded).await.unwrap();
    let calendar: serde_json::Value = serde_json::from_str(&calendar).unwrap();
    let items: Vec<_> = calendar["coverage"].as_array().unwrap().iter().map(|row| &row["item"]).collect();
    assert_eq!(items, ["TESTKUDOS:1", "TESTKUDOS:5 CS", ""]);
    assert!(calendar["periods"].as_array().unwrap().iter().all(|period| period["signed"] == false));
    let signed = tool.run(&site, "show sign", &downloaded).await.unwrap();
    assert!(signed.contains("exchange-upload-sigs-0") && !signed.contains("exchange-input-keys-0"));
    assert!(matches!(tool.run(&site, "upload", &signed).await, Err(OfflineError::Input(_))));
    let account =
        tool.run(&site, &format!("enable-account {PAYTO} disable-account {PAYTO}"), "").await.unwrap();
    let operations: Vec<OfflineOperation> = serde_json::from_str(&account).unwrap();
    assert_eq!(operations.len(), 2);
    tool.config.base_url = Some(site.running.base_url().into());
    assert_eq!(tool.run(&site, "upload", &signed).await.unwrap(), "");
    assert_eq!(tool.run(&site, "upload", &signed).await.unwrap(), "");
    check_keys(&site.keys().await);
    site.stop().await;
}

#[tokio::test]
async fn invalid_documents_are_not_signed() {
    let (site, _) = site().await;
    let mut tool = Tool::new(&site);
    let downloaded = tool.run(&site, "download", "").await.unwrap();
    let change = |edit: fn(&mut serde_json::Value)| {
        let mut document: serde_json::Value = serde_json::from_str(&downloaded).unwrap();
        edit(&mut document[0]["arguments"]);
        document.to_string()
    };
    let cases: [(Edit, &str); 4] = [
        (
            |keys| keys["future_denoms"][0]["section_name"] = "COIN_X".into(),
            "not signed by the security module",
        ),
        (
            |keys| keys["future_signkeys"][0]["stamp_start"] = serde_json::json!({ "t_s": 1 }),
            "not signed by the security module",
        ),
        (
            |keys| keys["future_denoms"][0]["stamp_expire_legal"] = serde_json::json!({ "t_s": 1 }),
            "not in order",
        ),
        (
            |keys| keys["master_pub"] = EddsaPrivateKey::generate().public_key().to_string().into(),
            "configured for the master key",
        ),
    ];
    for (edit, reason) in cases {
        let error = tool.run(&site, "sign", &change(edit)).await.unwrap_err();
        assert!(matches!(&error, OfflineError::Refused(text) if text.contains(reason)), "{error}");
    }
    // The modules are known from now on; others are refused, whoever signs for them.
    tool.run(&site, "sign", &downloaded).await.unwrap();
    let strange = change(|keys| {
        keys["denom_secmod_public_key"] = EddsaPrivateKey::generate().public_key().to_string().into();
    });
    let error = tool.run(&site, "sign", &strange).await.unwrap_err();
    assert!(error.to_string().contains("was known with"), "{error}");
    // A pinned key applies even on the first contact.
    std::fs::remove_file(tool.config.secm_tofu_file.as_ref().unwrap()).unwrap();
    tool.config.pinned_eddsa = Some(EddsaPrivateKey::generate().public_key());
    let error = tool.run(&site, "sign", &downloaded).await.unwrap_err();
    assert!(error.to_string().contains("is configured"), "{error}");
    // The master key differs from the configured one.
    tool.config.pinned_eddsa = None;
    tool.config.master_public_key = Some(EddsaPrivateKey::generate().public_key());
    let error = tool.run(&site, "sign", &downloaded).await.unwrap_err();
    assert!(error.to_string().contains("MASTER_PUBLIC_KEY"), "{error}");
    site.stop().await;
}

#[tokio::test]
async fn setup_creates_the_master_key_once() {
    let (site, master) = site().await;
    let mut tool = Tool::new(&site);
    let output = tool.run(&site, "setup", "").await.unwrap();
    assert!(output.contains(&master.public_key().to_string()));
    tool.config.master_public_key = None;
    tool.config.master_priv_file = site.directory.path().join("new/master.priv");
    assert!(matches!(tool.run(&site, "disable-account x", "").await, Err(OfflineError::NoMasterKey(_))));
    let first = tool.run(&site, "setup", "").await.unwrap();
    assert_eq!(tool.run(&site, "setup", "").await.unwrap(), first);
    assert_ne!(first, output);
    site.stop().await;
}
