//! The server's address and how to log in: a URL or `key=value` string, and libpq's defaults.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres::config::{Config, Host, SslMode, TargetSessionAttrs};

use super::error::PgError;

/// The directory of the server's Unix socket on Debian and most other systems.
const SOCKET_DIRECTORY: &str = "/var/run/postgresql";

/// A place to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ServerAddress {
    /// The directory of the socket file, and the port in its name.
    Unix(PathBuf, u16),
    /// A host's name or address, and the port.
    Tcp(String, u16),
}

/// The TLS that is required.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tls {
    Never,
    /// TLS if the server offers it.
    Prefer,
    /// TLS; the certificate is verified if there is a root certificate.
    Require,
    /// TLS; the certificate must be valid, for any name.
    VerifyCa,
    /// TLS; the certificate must be valid for the host's name.
    VerifyFull,
}

/// A database on a server. `Debug` does not show the password.
#[derive(Clone)]
pub struct Target {
    pub(crate) places: Vec<ServerAddress>,
    /// The user's name.
    pub(crate) user: String,
    pub(crate) password: Option<Vec<u8>>,
    /// The database's name.
    pub(crate) database: String,
    pub(crate) options: Option<String>,
    pub(crate) application: String,
    pub(crate) connect_timeout: Duration,
    /// Time that each answer may take; by default as long as connecting.
    pub(crate) answer_timeout: Option<Duration>,
    pub(crate) read_write: bool,
    pub(crate) tls: Tls,
    pub(crate) tls_config: Option<Arc<ClientConfig>>,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "database {} at {:?} as {}", self.database, self.places, self.user)
    }
}

impl Target {
    /// The same database on another server, with the same user.
    pub(crate) fn at(&self, host: &str, port: u16) -> Self {
        Self { places: vec![ServerAddress::Tcp(host.to_owned(), port)], ..self.clone() }
    }

    /// Reads a URL (`postgres:///exchange`, `postgres://user@host1,host2/db?sslmode=verify-full`) or a
    /// `key=value` string. Defaults come from `PGHOST`, `PGPORT`, `PGUSER`, `PGDATABASE`, `PGPASSWORD`,
    /// `PGPASSFILE` (`~/.pgpass`), `PGSSLMODE`, `PGSSLROOTCERT` and `PGCONNECT_TIMEOUT`, as with PostgreSQL's
    /// own programs. With several hosts the one that takes writes is chosen.
    ///
    /// # Errors
    /// The address has an unknown setting, or the certificates cannot be read.
    pub fn parse(url: &str) -> Result<Self, PgError> {
        Self::parse_with(url, &|name| std::env::var_os(name))
    }

    pub(crate) fn parse_with(url: &str, env: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, PgError> {
        let wrong = |what: String| PgError::Config(format!("database address: {what}"));
        let env_text =
            |name: &str| env(name).and_then(|value| value.into_string().ok()).filter(|v| !v.is_empty());
        let (plain, extra) = split_tls_settings(url);
        let config: Config = plain.parse().map_err(|error: tokio_postgres::Error| {
            use std::error::Error;
            wrong(error.source().map_or_else(|| error.to_string(), ToString::to_string))
        })?;
        let user = config.get_user().map(str::to_owned).or_else(|| env_text("PGUSER")).or_else(system_user);
        let user = user
            .ok_or_else(|| wrong("no user is given, and the system does not know the current one".into()))?;
        let database = config.get_dbname().map(str::to_owned).or_else(|| env_text("PGDATABASE"));
        let database = database.unwrap_or_else(|| user.clone());

        let port_text = env_text("PGPORT");
        let port: u16 = match &port_text {
            Some(text) => text.parse().map_err(|_| wrong(format!("PGPORT is {text}")))?,
            None => 5432,
        };
        let port_of = |n: usize| match config.get_ports() {
            [] => port,
            [one] => *one,
            ports => ports.get(n).copied().unwrap_or(port),
        };
        let mut places: Vec<ServerAddress> = (config.get_hosts().iter().enumerate())
            .map(|(n, host)| match host {
                Host::Tcp(name) => ServerAddress::Tcp(name.clone(), port_of(n)),
                Host::Unix(path) => ServerAddress::Unix(path.clone(), port_of(n)),
            })
            .collect();
        if places.is_empty() {
            let addresses = config.get_hostaddrs().iter().enumerate();
            places =
                addresses.map(|(n, address)| ServerAddress::Tcp(address.to_string(), port_of(n))).collect();
        }
        if places.is_empty() {
            let hosts = env_text("PGHOST").unwrap_or_else(|| {
                let standard = if Path::new(SOCKET_DIRECTORY).is_dir() { SOCKET_DIRECTORY } else { "/tmp" };
                standard.to_owned()
            });
            let place = |(n, host): (usize, &str)| match host.starts_with('/') {
                true => ServerAddress::Unix(host.into(), port_of(n)),
                false => ServerAddress::Tcp(host.to_owned(), port_of(n)),
            };
            places = hosts.split(',').enumerate().map(place).collect();
        }

        let password = config.get_password().map(<[u8]>::to_vec);
        let password = password.or_else(|| env_text("PGPASSWORD").map(String::into_bytes)).or_else(|| {
            let file = extra.passfile.clone().or_else(|| env("PGPASSFILE").map(PathBuf::from));
            let file = file.or_else(|| Some(PathBuf::from(env("HOME")?).join(".pgpass")))?;
            password_from(&std::fs::read_to_string(file).ok()?, places.first()?, &database, &user)
        });

        let mode = extra.sslmode.clone().or_else(|| env_text("PGSSLMODE"));
        let tls = match mode.as_deref() {
            Some("disable") => Tls::Never,
            Some("allow" | "prefer") => Tls::Prefer,
            Some("require") => Tls::Require,
            Some("verify-ca") => Tls::VerifyCa,
            Some("verify-full") => Tls::VerifyFull,
            Some(other) => return Err(wrong(format!("sslmode {other}"))),
            None if config.get_ssl_mode() == SslMode::Disable => Tls::Never,
            None => Tls::Prefer,
        };
        let roots = extra.sslrootcert.clone().or_else(|| env("PGSSLROOTCERT").map(PathBuf::from));
        let needs_tls =
            tls != Tls::Never && places.iter().any(|place| matches!(place, ServerAddress::Tcp(..)));
        let tls_config = if needs_tls { Some(Arc::new(tls_config(tls, roots.as_deref())?)) } else { None };
        let timeout =
            env_text("PGCONNECT_TIMEOUT").and_then(|text| text.parse().ok()).map(Duration::from_secs);
        let connect_timeout =
            config.get_connect_timeout().copied().or(timeout).unwrap_or(Duration::from_secs(10));
        let read_write =
            places.len() > 1 || config.get_target_session_attrs() == TargetSessionAttrs::ReadWrite;
        let application = config.get_application_name().unwrap_or("batzen").to_owned();
        let options = config.get_options().map(str::to_owned);
        Ok(Self {
            places,
            user,
            password,
            database,
            options,
            application,
            connect_timeout,
            answer_timeout: None,
            read_write,
            tls,
            tls_config,
        })
    }

    /// Sets the application name in the server's list of sessions.
    #[must_use]
    pub fn application(mut self, name: &str) -> Self {
        name.clone_into(&mut self.application);
        self
    }

    /// Sets the time limit for connecting, and for each answer.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self.answer_timeout = Some(timeout);
        self
    }

    /// Removes the time limit for answers, for work on whole tables. A server that disappears is noticed
    /// anyway.
    #[must_use]
    pub fn patient(mut self) -> Self {
        self.answer_timeout = Some(Duration::from_secs(30 * 86_400));
        self
    }

    /// Accepts only a server that accepts writes, not a standby.
    #[must_use]
    pub fn read_write(mut self) -> Self {
        self.read_write = true;
        self
    }

    /// The database's name.
    #[must_use]
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The user's name.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn user(&self) -> &str {
        &self.user
    }
}

/// libpq's settings that the parser does not support.
#[derive(Default)]
struct Extra {
    sslmode: Option<String>,
    sslrootcert: Option<PathBuf>,
    passfile: Option<PathBuf>,
}

fn split_tls_settings(url: &str) -> (String, Extra) {
    let mut extra = Extra::default();
    let mut keep = |part: &str| {
        let Some((name, value)) = part.split_once('=') else { return true };
        let value = percent_decoded(value.trim_matches('\''));
        match name {
            "sslmode" => extra.sslmode = Some(value),
            "sslrootcert" => extra.sslrootcert = Some(value.into()),
            "passfile" => extra.passfile = Some(value.into()),
            _ => return true,
        }
        false
    };
    let plain = if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        match url.split_once('?') {
            Some((head, query)) => {
                let kept: Vec<&str> = query.split('&').filter(|part| keep(part)).collect();
                if kept.is_empty() { head.to_owned() } else { format!("{head}?{}", kept.join("&")) }
            }
            None => url.to_owned(),
        }
    } else {
        url.split_whitespace().filter(|part| keep(part)).collect::<Vec<_>>().join(" ")
    };
    (plain, extra)
}

fn percent_decoded(text: &str) -> String {
    let (mut out, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&byte, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match (byte, hex) {
            (b'%', Some(decoded)) => {
                out.push(decoded);
                rest = &tail[2..];
            }
            _ => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The user that this process runs as.
fn system_user() -> Option<String> {
    let id = rustix::process::geteuid().as_raw().to_string();
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == id).then(|| name.to_owned())
    })
}

/// The password in the first line that matches: `host:port:database:user:password`; `*` matches everything,
/// and `\` escapes.
fn password_from(file: &str, place: &ServerAddress, database: &str, user: &str) -> Option<Vec<u8>> {
    let (host, port) = match place {
        ServerAddress::Unix(path, port) if path == Path::new(SOCKET_DIRECTORY) => {
            ("localhost".to_owned(), port)
        }
        ServerAddress::Unix(path, port) => (path.to_string_lossy().into_owned(), port),
        ServerAddress::Tcp(host, port) => (host.clone(), port),
    };
    let wanted = [host.as_str(), &port.to_string(), database, user];
    for line in file.lines().filter(|line| !line.starts_with('#')) {
        let mut fields = vec![String::new()];
        let mut chars = line.chars();
        while let Some(char) = chars.next() {
            match char {
                '\\' => fields.last_mut()?.extend(chars.next()),
                // The password may contain colons.
                ':' if fields.len() < 5 => fields.push(String::new()),
                other => fields.last_mut()?.push(other),
            }
        }
        if fields.len() == 5
            && fields.iter().zip(wanted).all(|(field, wanted)| field == "*" || field == wanted)
        {
            return fields.pop().map(String::into_bytes);
        }
    }
    None
}

fn tls_config(tls: Tls, roots: Option<&Path>) -> Result<ClientConfig, PgError> {
    let fail = |what: String| PgError::Config(format!("TLS: {what}"));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| fail(error.to_string()))?;
    let verifies = matches!(tls, Tls::VerifyCa | Tls::VerifyFull) || roots.is_some();
    let inner = if verifies {
        let mut store = RootCertStore::empty();
        match roots {
            Some(path) if path != Path::new("system") => {
                let unreadable =
                    |error: rustls::pki_types::pem::Error| fail(format!("{}: {error}", path.display()));
                for certificate in CertificateDer::pem_file_iter(path).map_err(unreadable)? {
                    store.add(certificate.map_err(unreadable)?).map_err(|error| fail(error.to_string()))?;
                }
            }
            _ => {
                store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(store), Arc::clone(&provider)).build();
        Some(verifier.map_err(|error| fail(error.to_string()))?)
    } else {
        None
    };
    let checks_name = tls == Tls::VerifyFull;
    let verifier = Arc::new(Verifier { inner, checks_name, provider });
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// Verifies certificates as libpq does in the same `sslmode`.
#[derive(Debug)]
struct Verifier {
    inner: Option<Arc<WebPkiServerVerifier>>,
    checks_name: bool,
    provider: Arc<rustls::crypto::CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(inner) = &self.inner else { return Ok(ServerCertVerified::assertion()) };
        match inner.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.checks_name => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str, env: &[(&str, &str)]) -> Target {
        let find =
            |name: &str| env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
        Target::parse_with(url, &find).expect("it is an address")
    }

    #[test]
    fn an_address_without_a_host_means_the_local_socket() {
        let target = parse("postgres:///exchange", &[("PGUSER", "ann")]);
        assert!(matches!(&target.places[..], [ServerAddress::Unix(_, 5432)]), "{target:?}");
        assert_eq!((target.database(), target.user()), ("exchange", "ann"));
        let target = parse("dbname=exchange", &[("PGUSER", "ann"), ("PGHOST", "db"), ("PGPORT", "6000")]);
        assert_eq!(target.places, [ServerAddress::Tcp("db".into(), 6000)]);
    }

    #[test]
    fn several_hosts_are_tried_for_the_one_that_takes_writes() {
        let target = parse("postgres://bob:secret@a,b:6001/x?sslmode=require&connect_timeout=3", &[]);
        assert_eq!(
            target.places,
            [ServerAddress::Tcp("a".into(), 5432), ServerAddress::Tcp("b".into(), 6001)]
        );
        assert!(target.read_write && target.tls == Tls::Require);
        assert_eq!(target.connect_timeout, Duration::from_secs(3));
        assert!(!format!("{target:?}").contains("secret"));
    }

    #[test]
    fn password_files_are_searched_for_the_first_line_that_fits() {
        let place = ServerAddress::Tcp("h".into(), 5432);
        let file = "# h:5432:db:u:no\nother:*:*:*:1\nh:5432:*:u:a\\:b:c\n*:*:*:*:2\n";
        assert_eq!(password_from(file, &place, "db", "u").as_deref(), Some(b"a:b:c".as_slice()));
        assert_eq!(password_from(file, &place, "db", "v").as_deref(), Some(b"2".as_slice()));
    }

    #[test]
    fn unknown_settings_are_refused() {
        assert!(Target::parse_with("postgres:///x?sslmode=maybe&user=a", &|_| None).is_err());
        assert!(Target::parse_with("postgres:///x?colour=red&user=a", &|_| None).is_err());
    }
}
