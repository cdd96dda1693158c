//! The configurations that `sample-config` prints.
//!
//! Without options, all files are kept below the user's home directory, so that nobody needs to be root. With
//! `--system` the paths are those of the systemd units in `deploy/systemd`.

use std::process::ExitCode;

use clap::Args;

use crate::cli::tokens;

/// A configuration of an exchange to start from.
pub(super) const EXCHANGE: &str = include_str!("exchange.conf");
/// A configuration of a bank to start from.
pub(super) const BANK: &str = include_str!("bank.conf");
/// A configuration of a switch to start from.
pub(super) const SWITCH: &str = include_str!("switch.conf");
/// A configuration of a signer to start from. The keys in it must be replaced.
pub(super) const SIGNER: &str = include_str!("signer.conf");

/// A configuration of a ledger to start from.
pub(super) const LEDGER: &str = include_str!("ledger.conf");

/// A configuration of an auditor to start from.
pub(super) const AUDITOR: &str = include_str!("auditor.conf");

/// A configuration of a merchant backend to start from.
pub(super) const MERCHANT: &str = include_str!("merchant.conf");

#[derive(Args)]
pub(super) struct SampleArgs {
    /// Use the paths of the systemd units, below /var/lib and /run
    #[arg(long)]
    system: bool,
}

/// Prints a service's sample configuration.
pub(super) fn print(args: &SampleArgs, service: &str, sample: &str) -> ExitCode {
    let sample = with_new_tokens(sample);
    print!("{}", if args.system { with_system_paths(service, &sample) } else { sample });
    ExitCode::SUCCESS
}

/// The sample with a random token instead of each of its placeholders, so that no two printed samples have the same.
fn with_new_tokens(sample: &str) -> String {
    let mut parts = sample.split("{TOKEN}");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + &tokens::random() + part)
}

/// The sample with the state and runtime directories of the service's unit.
fn with_system_paths(service: &str, sample: &str) -> String {
    let mut text = String::new();
    for line in sample.lines() {
        match line.split_once(" = ") {
            Some(("TALER_DATA_HOME", _)) => text += &format!("TALER_DATA_HOME = /var/lib/batzen-{service}"),
            Some(("TALER_RUNTIME_DIR", _)) => text += &format!("TALER_RUNTIME_DIR = /run/batzen-{service}"),
            _ => text += line,
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use batzen_bank::BankConfig;
    use batzen_config::Config;
    use batzen_exchange::config::{CipherConfig, ExchangeConfig};
    use batzen_signer::config::ModuleKind;

    use super::*;

    const SAMPLES: [(&str, &str); 7] = [
        ("exchange", EXCHANGE),
        ("bank", BANK),
        ("ledger", LEDGER),
        ("switch", SWITCH),
        ("signer", SIGNER),
        ("merchant", MERCHANT),
        ("auditor", AUDITOR),
    ];

    #[test]
    fn samples_are_valid() {
        let exchange = with_system_paths("exchange", EXCHANGE);
        let config = ExchangeConfig::from_ini(&Config::parse(&exchange).unwrap()).unwrap();
        assert_eq!(config.coins.len(), 4);
        // Wallets that cannot make Clause Schnorr planchets must be able to use the sample as it is.
        assert!(config.coins.iter().all(|coin| matches!(coin.cipher, CipherConfig::Rsa { .. })));
        let bank = with_system_paths("bank", BANK);
        BankConfig::from_config(&Config::parse(&bank).unwrap()).unwrap();
        let key = "[signer-node-one]\nPUBLIC_KEY = {}\n[exchange]\nMASTER_PUBLIC_KEY = {}\n"
            .replace("{}", &"0".repeat(52));
        let signer = with_system_paths("signer", SIGNER);
        let signer = Config::parse(&format!("{signer}\n{key}")).unwrap();
        assert_eq!(batzen_signer::service_config::SignerConfig::from_ini(&signer).unwrap().nodes.len(), 1);
        let ledger = Config::parse(&with_system_paths("ledger", LEDGER)).unwrap();
        let ledger = crate::cli::ledger::ServeConfig::from_ini(&ledger).unwrap();
        assert_eq!(ledger.store.dir().unwrap(), std::path::Path::new("/var/lib/batzen-ledger/ledger"));
        let merchant = Config::parse(&with_system_paths("merchant", MERCHANT)).unwrap();
        let merchant = batzen_merchant::MerchantConfig::from_config(&merchant).unwrap();
        assert_eq!(merchant.store.dir().unwrap(), std::path::Path::new("/var/lib/batzen-merchant/merchant"));
        let switch = |text: &str| {
            let ini = Config::parse(&with_system_paths("switch", text)).unwrap();
            crate::cli::switch::from_ini(&ini).map(|config| config.operators)
        };
        assert!(switch(SWITCH).is_err(), "a placeholder is no token");
        let (one, other) =
            (switch(&with_new_tokens(SWITCH)).unwrap(), switch(&with_new_tokens(SWITCH)).unwrap());
        assert_eq!(one.len(), 2);
        assert_ne!(one[0].token_hash, one[1].token_hash);
        assert_ne!(one[0].token_hash, other[0].token_hash);
    }

    /// Every option of a sample is one that a program reads, including those that are commented out.
    #[test]
    fn samples_have_only_known_options() {
        for (service, sample) in SAMPLES {
            let shown: String = sample
                .lines()
                .map(|line| match line.strip_prefix("# ") {
                    Some(option) if option.contains(" = ") || option.ends_with(" =") => option,
                    Some(section) if section.starts_with('[') && section.ends_with(']') => section,
                    _ => line,
                })
                .fold(String::new(), |text, line| text + line + "\n");
            let ini = Config::parse(&shown).unwrap();
            assert_eq!(crate::cli::known_options::unknown(&ini), [""; 0], "{service}");
        }
    }

    #[test]
    fn the_paths_of_the_units_replace_those_of_the_user() {
        for (service, sample) in SAMPLES {
            let user = Config::parse(sample).unwrap();
            assert!(
                user.text("paths", "TALER_DATA_HOME").unwrap().ends_with("/.local/share}/batzen"),
                "{service}"
            );
            let system = Config::parse(&with_system_paths(service, sample)).unwrap();
            let home = system.text("paths", "TALER_DATA_HOME").unwrap();
            assert_eq!(home, format!("/var/lib/batzen-{service}"));
            let unit =
                format!("{}/../../deploy/systemd/batzen-{service}.service", env!("CARGO_MANIFEST_DIR"));
            let unit = std::fs::read_to_string(unit).unwrap();
            assert!(unit.contains(&format!("\nStateDirectory=batzen-{service}\n")), "{service}");
            assert!(unit.contains(&format!("\nUser=batzen-{service}\n")), "{service}");
        }
    }

    /// The paths for key helpers are those of their units.
    #[test]
    fn key_helpers_of_the_units_have_directories_of_their_own() {
        let text = with_system_paths("exchange", EXCHANGE)
            + include_str!("../../../../../deploy/systemd/secmod.conf");
        let master = format!("[exchange]\nMASTER_PUBLIC_KEY = {}\n", "0".repeat(52));
        let config = ExchangeConfig::from_ini(&Config::parse(&(text + &master)).unwrap()).unwrap();
        let sockets = config.key_helpers.clone().unwrap().0;
        let unit = include_str!("../../../../../deploy/systemd/batzen-exchange-secmod@.service");
        assert!(unit.contains("\nStateDirectory=batzen-secmod-%i\nStateDirectoryMode=0700\n"), "{unit}");
        assert!(unit.contains("\nRuntimeDirectory=batzen-secmod-%i\nRuntimeDirectoryMode=0750\n"), "{unit}");
        let keys = config.keys_config();
        for kind in ModuleKind::ALL {
            let (module, name) = (keys.module(kind), kind.name());
            for path in [&module.key_dir, &module.sm_priv_key] {
                assert!(path.starts_with(format!("/var/lib/batzen-secmod-{name}")), "{}", path.display());
            }
            assert!(sockets[kind as usize].starts_with(format!("/run/batzen-secmod-{name}")));
        }
    }

    /// The defaults installed for test harnesses must equal the programs' own defaults.
    #[test]
    fn installed_defaults_change_nothing() {
        let defaults = include_str!("../../../../../deploy/config.d/exchange.conf");
        let exchange = |text: &str| {
            ExchangeConfig::from_ini(&Config::parse(text).unwrap()).map(|config| format!("{config:?}"))
        };
        let sample = with_system_paths("exchange", EXCHANGE);
        assert_eq!(exchange(&format!("{defaults}\n{sample}")).unwrap(), exchange(&sample).unwrap());
        let defaults = include_str!("../../../../../deploy/config.d/bank.conf");
        let bank = |text: &str| {
            let bank = BankConfig::from_config(&Config::parse(text).unwrap()).unwrap();
            (bank.http_port, bank.hostname)
        };
        let sample = with_system_paths("bank", BANK);
        assert_eq!(bank(&format!("{defaults}\n{sample}")), bank(&sample));
    }
}
