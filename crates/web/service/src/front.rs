//! The way from clients to a service, as a configuration describes it.

use batzen_config::{Config, ConfigError, Expected};
use batzen_http::{OwnNames, TrustedProxies};

/// Reads `TRUSTED_PROXIES` and `HOSTNAMES` of a section.
///
/// # Errors
/// The option that is invalid, with its place.
pub fn front(config: &Config, section: &str) -> Result<(TrustedProxies, OwnNames), ConfigError> {
    let proxies = |text: &str| text.parse().map_err(|_| Expected::new(TrustedProxies::EXPECTED));
    let names = |text: &str| text.parse().map_err(|_| Expected::new(OwnNames::EXPECTED));
    Ok((
        config.get_with(section, "TRUSTED_PROXIES", proxies)?.unwrap_or_default(),
        config.get_with(section, "HOSTNAMES", names)?.unwrap_or_default(),
    ))
}
