//! The channel between the exchange and the holders of its keys.
//!
//! With signers, it is encrypted: TLS 1.3 with raw public keys (RFC 7250) on both sides. There are no
//! certificates and no authorities. Each side has one Ed25519 key, and its configuration names the other's.
//!
//! With key helpers, it is a plain local socket: both processes are on one machine, and the permissions of the
//! socket and its directory decide who may connect.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey};
use batzen_http::Socket;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls13_signature_with_raw_key,
};
use tokio_rustls::rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error as TlsError,
    ServerConfig, SignatureScheme,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use zeroize::Zeroizing;

use crate::address::Address;

/// Any stream of bytes in both directions.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// A connection whose peer is authenticated, by its key or by the permissions of a local socket.
pub type Channel = Box<dyn Transport>;

/// The bytes before the public key in its SubjectPublicKeyInfo (RFC 8410).
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// The bytes before the private key in PKCS #8 (RFC 8410).
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// Why no channel could be set up.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// A network error, or a refusal by the peer.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The key of this side cannot be used.
    #[error("this side's key cannot be used: {0}")]
    Key(String),
    /// The peer did not answer in time.
    #[error("no answer in time")]
    Timeout,
}

/// Why the static key of a node or signer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StaticKeyError {
    /// There is no such file.
    #[error("{0}: {1}; `batzen signer keygen FILE` makes one")]
    Missing(String, io::Error),
    /// The file cannot be read.
    #[error("{0}: {1}")]
    Io(String, io::Error),
    /// Other users can read the file.
    #[error("{0}: other users can read this key; run chmod 600")]
    Readable(String),
    /// The file is not a key.
    #[error("{0}: a key has exactly 32 bytes")]
    Size(String),
}

/// Reads the static key of a node or signer: 32 bytes in a file that only its owner may read.
///
/// # Errors
/// If the file is missing, or others may read it.
pub fn load_key(path: &Path) -> Result<EddsaPrivateKey, StaticKeyError> {
    use std::os::unix::fs::PermissionsExt as _;
    let place = || path.display().to_string();
    let bytes = std::fs::read(path).map(Zeroizing::new).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => StaticKeyError::Missing(place(), error),
        _ => StaticKeyError::Io(place(), error),
    })?;
    let metadata = std::fs::metadata(path).map_err(|error| StaticKeyError::Io(place(), error))?;
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(StaticKeyError::Readable(place()));
    }
    EddsaPrivateKey::try_from(bytes.as_slice()).map_err(|_| StaticKeyError::Size(place()))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn certified(key: &EddsaPrivateKey, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, ChannelError> {
    let mut pkcs8 = Zeroizing::new(Vec::with_capacity(PKCS8_PREFIX.len() + 32));
    pkcs8.extend_from_slice(&PKCS8_PREFIX);
    pkcs8.extend_from_slice(key.as_bytes());
    let private = PrivatePkcs8KeyDer::from(pkcs8.as_slice()).clone_key();
    let signing = provider
        .key_provider
        .load_private_key(private.into())
        .map_err(|error| ChannelError::Key(error.to_string()))?;
    let mut spki = SPKI_PREFIX.to_vec();
    spki.extend_from_slice(key.public_key().as_bytes());
    Ok(Arc::new(CertifiedKey::new(vec![CertificateDer::from(spki)], signing)))
}

/// The key that the peer presented, if it is one of the allowed ones.
fn pinned(shown: &CertificateDer<'_>, allowed: &[EddsaPublicKey]) -> Result<EddsaPublicKey, TlsError> {
    let refused = TlsError::InvalidCertificate(CertificateError::ApplicationVerificationFailure);
    let key = key_of(shown).ok_or(refused.clone())?;
    if allowed.contains(&key) { Ok(key) } else { Err(refused) }
}

fn key_of(shown: &CertificateDer<'_>) -> Option<EddsaPublicKey> {
    EddsaPublicKey::try_from(shown.strip_prefix(&SPKI_PREFIX)?).ok()
}

/// Accepts the listed keys and no others.
#[derive(Debug)]
struct Pins {
    allowed: Vec<EddsaPublicKey>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// The methods that verifiers of servers and of clients have in common. rustls asks for both versions of the protocol;
/// only TLS 1.3 is offered.
macro_rules! raw_keys {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, TlsError> {
            Err(TlsError::General("TLS 1.2 is not supported".into()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            shown: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, TlsError> {
            let spki = SubjectPublicKeyInfoDer::from(shown.as_ref());
            verify_tls13_signature_with_raw_key(message, &spki, signature, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for Pins {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        pinned(shown, &self.allowed).map(|_| ServerCertVerified::assertion())
    }

    raw_keys!();
}

impl ClientCertVerifier for Pins {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        pinned(shown, &self.allowed).map(|_| ClientCertVerified::assertion())
    }

    raw_keys!();
}

fn key_error(error: &TlsError) -> ChannelError {
    ChannelError::Key(error.to_string())
}

/// The accepting side.
#[derive(Clone)]
pub struct Accept(Accepting);

#[derive(Clone)]
enum Accepting {
    Tls(TlsAcceptor),
    Local,
}

impl Accept {
    /// Presents `key` and accepts clients with one of the keys `allowed`.
    ///
    /// # Errors
    /// If the key cannot be used.
    pub fn new(key: &EddsaPrivateKey, allowed: Vec<EddsaPublicKey>) -> Result<Self, ChannelError> {
        let provider = provider();
        let certified = certified(key, &provider)?;
        let algorithms = provider.signature_verification_algorithms;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| key_error(&error))?
            .with_client_cert_verifier(Arc::new(Pins { allowed, algorithms }))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified)));
        // No session resumption: every connection authenticates again.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self(Accepting::Tls(TlsAcceptor::from(Arc::new(config)))))
    }

    /// Accepts everybody who may open the local socket.
    pub(crate) fn local() -> Self {
        Self(Accepting::Local)
    }

    /// Performs the handshake; returns the client's key too, unless the socket is local.
    ///
    /// # Errors
    /// If the client is not on the list, or does not speak the protocol.
    pub async fn accept(
        &self,
        socket: Socket,
        timeout: Duration,
    ) -> Result<(Channel, Option<EddsaPublicKey>), ChannelError> {
        let stream: Box<dyn Transport> = match socket {
            Socket::Tcp(stream, _) => Box::new(stream),
            Socket::Unix(stream) => Box::new(stream),
        };
        let Accepting::Tls(acceptor) = &self.0 else { return Ok((stream, None)) };
        let handshake = tokio::time::timeout(timeout, acceptor.accept(stream));
        let stream = handshake.await.map_err(|_| ChannelError::Timeout)??;
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let key = shown.and_then(key_of).ok_or_else(|| io::Error::other("the client presented no key"))?;
        Ok((Box::new(TlsStream::Server(stream)), Some(key)))
    }
}

/// The connecting side.
#[derive(Clone)]
pub struct Connect(Connecting);

#[derive(Clone)]
enum Connecting {
    Tls(TlsConnector),
    Local,
}

impl Connect {
    /// Presents `key` and accepts servers with one of the keys `allowed`.
    ///
    /// # Errors
    /// If the key cannot be used.
    pub fn new(key: &EddsaPrivateKey, allowed: Vec<EddsaPublicKey>) -> Result<Self, ChannelError> {
        let provider = provider();
        let certified = certified(key, &provider)?;
        let algorithms = provider.signature_verification_algorithms;
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| key_error(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pins { allowed, algorithms }))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(certified)));
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        Ok(Self(Connecting::Tls(TlsConnector::from(Arc::new(config)))))
    }

    /// Connects to local sockets without encryption.
    pub fn local() -> Self {
        Self(Connecting::Local)
    }

    /// Returns whether the peer checks this side's key.
    pub(crate) fn presents_key(&self) -> bool {
        matches!(self.0, Connecting::Tls(_))
    }

    /// Connects. Whether the signer accepts this side's key is known only after its first answer.
    ///
    /// # Errors
    /// If the signer cannot be reached, or presents another key.
    pub async fn connect(&self, address: &Address, timeout: Duration) -> Result<Channel, ChannelError> {
        let connect = async {
            let stream: Box<dyn Transport> = match address {
                Address::Tcp(address) => {
                    let stream = TcpStream::connect(address).await?;
                    stream.set_nodelay(true)?;
                    Box::new(stream)
                }
                Address::Unix(path) => Box::new(UnixStream::connect(path).await?),
            };
            let Connecting::Tls(connector) = &self.0 else { return Ok(stream) };
            // The name is ignored: the key authenticates.
            let name = ServerName::try_from("signer.invalid").expect("a valid name");
            let channel: Channel = Box::new(TlsStream::Client(connector.connect(name, stream).await?));
            Ok(channel)
        };
        tokio::time::timeout(timeout, connect).await.map_err(|_| ChannelError::Timeout)?
    }
}

#[cfg(test)]
mod tests {
    use batzen_http::{Bound, Listen, Listener};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const STEP_TIMEOUT: Duration = Duration::from_secs(60);

    /// Returns whether a byte arrives and comes back, and the client that the server saw.
    async fn talk(
        server: Accept,
        client: &Connect,
    ) -> (Result<EddsaPublicKey, ChannelError>, io::Result<u8>) {
        let (listener, bound) = Listener::bind(Listen::localhost(0)).await.unwrap();
        let Bound::Tcp(address) = bound else { unreachable!() };
        let serve = tokio::spawn(async move {
            let (mut stream, key) = server.accept(listener.accept().await.unwrap(), STEP_TIMEOUT).await?;
            let byte = stream.read_u8().await?;
            stream.write_u8(byte + 1).await?;
            stream.flush().await?;
            stream.shutdown().await?;
            Ok(key.expect("TLS names the client"))
        });
        let ask = async {
            let address = Address::Tcp(address.to_string());
            let mut stream = client.connect(&address, STEP_TIMEOUT).await.map_err(io::Error::other)?;
            stream.write_u8(6).await?;
            stream.flush().await?;
            stream.read_u8().await
        };
        let answer = ask.await;
        (serve.await.unwrap(), answer)
    }

    #[tokio::test]
    async fn both_sides_refuse_unknown_keys() {
        let [server, client, stranger] = [(); 3].map(|()| EddsaPrivateKey::generate());
        let accept = |allowed: &EddsaPrivateKey| Accept::new(&server, vec![allowed.public_key()]).unwrap();
        let connect = |own: &EddsaPrivateKey, expected: &EddsaPrivateKey| {
            Connect::new(own, vec![expected.public_key()]).unwrap()
        };
        let (seen, answer) = talk(accept(&client), &connect(&client, &server)).await;
        assert_eq!((seen.unwrap(), answer.unwrap()), (client.public_key(), 7));
        let (seen, answer) = talk(accept(&client), &connect(&stranger, &server)).await;
        assert!(seen.is_err() && answer.is_err(), "a client that is not listed");
        let (seen, answer) = talk(accept(&client), &connect(&client, &stranger)).await;
        assert!(seen.is_err() && answer.is_err(), "a server that is not the expected one");
    }

    #[test]
    fn keys_that_others_can_read_are_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.key");
        assert!(load_key(&path).unwrap_err().to_string().contains("keygen"));
        std::fs::write(&path, [7; 32]).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(load_key(&path).unwrap_err().to_string().contains("chmod"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(load_key(&path).unwrap().as_bytes(), &[7; 32]);
        std::fs::write(&path, [7; 31]).unwrap();
        assert!(load_key(&path).is_err());
    }
}
