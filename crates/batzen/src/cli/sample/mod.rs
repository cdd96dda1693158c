//! The configurations that `sample-config` prints.

/// A configuration of an exchange to start from.
pub const EXCHANGE: &str = include_str!("exchange.conf");
/// A configuration of a bank to start from.
pub const BANK: &str = include_str!("bank.conf");

#[cfg(test)]
mod tests {
    use batzen_bank::BankConfig;
    use batzen_config::Config;
    use batzen_exchange::config::{CipherConfig, ExchangeConfig};

    use super::*;

    #[test]
    fn samples_are_valid() {
        let config = ExchangeConfig::from_ini(&Config::parse(EXCHANGE).unwrap()).unwrap();
        assert_eq!(config.coins.len(), 4);
        // Wallets that cannot make Clause Schnorr planchets must be able to use the sample as it is.
        assert!(config.coins.iter().all(|coin| matches!(coin.cipher, CipherConfig::Rsa { .. })));
        BankConfig::from_config(&Config::parse(BANK).unwrap()).unwrap();
    }

    /// The defaults that are installed for harnesses are those that the programs have anyway.
    #[test]
    fn installed_defaults_change_nothing() {
        let defaults = include_str!("../../../../../deploy/config.d/exchange.conf");
        let exchange = |text: &str| {
            ExchangeConfig::from_ini(&Config::parse(text).unwrap()).map(|config| format!("{config:?}"))
        };
        assert_eq!(exchange(&format!("{defaults}\n{EXCHANGE}")).unwrap(), exchange(EXCHANGE).unwrap());
        let defaults = include_str!("../../../../../deploy/config.d/bank.conf");
        let bank = |text: &str| {
            let bank = BankConfig::from_config(&Config::parse(text).unwrap()).unwrap();
            (bank.http_port, bank.hostname)
        };
        assert_eq!(bank(&format!("{defaults}\n{BANK}")), bank(BANK));
    }
}
