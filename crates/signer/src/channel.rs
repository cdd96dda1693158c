//! The encrypted channel: TLS 1.3 with raw public keys (RFC 7250) on both sides. There are no certificates and no
//! authorities: each side has one Ed25519 key, and the other's is in its configuration.

use std::io;
use std::path::{Path, PathBuf};
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

/// Anything that carries bytes both ways.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// A connection whose other end is known.
pub type Channel = TlsStream<Box<dyn Transport>>;

/// What stands before the 32 bytes of a public key in its SubjectPublicKeyInfo (RFC 8410).
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// What stands before the 32 bytes of a private key in PKCS #8 (RFC 8410).
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// Why there is no channel.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The network, or the other side's refusal.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The key of this side cannot be used.
    #[error("this side's key cannot be used: {0}")]
    Key(String),
    /// It took too long.
    #[error("no answer in time")]
    Timeout,
}

/// Why the static key of a node or signer cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct KeyFileError {
    path: PathBuf,
    reason: KeyFileReason,
}

#[derive(Debug, thiserror::Error)]
enum KeyFileReason {
    #[error("{0}; `batzen signer keygen FILE` makes one")]
    Missing(io::Error),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("others than the owner may read this key: chmod 600")]
    Exposed,
    #[error("a key has exactly 32 bytes")]
    Length,
}

/// Reads the static key of a node or signer: 32 bytes in a file that its owner alone may read.
///
/// # Errors
/// When there is none, or others may read it.
pub fn load_key(path: &Path) -> Result<EddsaPrivateKey, KeyFileError> {
    read_key(path).map_err(|reason| KeyFileError { path: path.to_owned(), reason })
}

fn read_key(path: &Path) -> Result<EddsaPrivateKey, KeyFileReason> {
    use std::os::unix::fs::PermissionsExt as _;
    let bytes = std::fs::read(path).map(Zeroizing::new).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => KeyFileReason::Missing(error),
        _ => KeyFileReason::Io(error),
    })?;
    let mode = std::fs::metadata(path)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(KeyFileReason::Exposed);
    }
    EddsaPrivateKey::try_from(bytes.as_slice()).map_err(|_| KeyFileReason::Length)
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

/// The key that a side has shown, if it is one of the allowed.
fn pinned(shown: &CertificateDer<'_>, allowed: &[EddsaPublicKey]) -> Result<EddsaPublicKey, TlsError> {
    let refused = TlsError::InvalidCertificate(CertificateError::ApplicationVerificationFailure);
    let key = key_of(shown).ok_or(refused.clone())?;
    if allowed.contains(&key) { Ok(key) } else { Err(refused) }
}

fn key_of(shown: &CertificateDer<'_>) -> Option<EddsaPublicKey> {
    EddsaPublicKey::try_from(shown.strip_prefix(&SPKI_PREFIX)?).ok()
}

/// Accepts the keys of a list and no others.
#[derive(Debug)]
struct Pins {
    allowed: Vec<EddsaPublicKey>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Pins {
    fn signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let spki = SubjectPublicKeyInfoDer::from(shown.as_ref());
        verify_tls13_signature_with_raw_key(message, &spki, signature, &self.algorithms)
    }
}

/// Both versions of the protocol are asked for; only the newer is offered.
fn no_tls12() -> TlsError {
    TlsError::General("TLS 1.2 is not spoken".into())
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

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.signature(message, shown, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
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

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.signature(message, shown, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

fn key_error(error: &TlsError) -> ChannelError {
    ChannelError::Key(error.to_string())
}

/// The listening side.
#[derive(Clone)]
pub struct Accept(TlsAcceptor);

impl Accept {
    /// Shows `key`, lets in those with the keys `allowed`.
    ///
    /// # Errors
    /// When the key cannot be used.
    pub fn new(key: &EddsaPrivateKey, allowed: Vec<EddsaPublicKey>) -> Result<Self, ChannelError> {
        let provider = provider();
        let certified = certified(key, &provider)?;
        let algorithms = provider.signature_verification_algorithms;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| key_error(&error))?
            .with_client_cert_verifier(Arc::new(Pins { allowed, algorithms }))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified)));
        // Every connection shows its key again.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    /// The handshake, and the client's key.
    ///
    /// # Errors
    /// When the client is not on the list, or is no client.
    pub async fn accept(
        &self,
        socket: Socket,
        timeout: Duration,
    ) -> Result<(Channel, EddsaPublicKey), ChannelError> {
        let stream: Box<dyn Transport> = match socket {
            Socket::Tcp(stream, _) => Box::new(stream),
            Socket::Unix(stream) => Box::new(stream),
        };
        let handshake = tokio::time::timeout(timeout, self.0.accept(stream));
        let stream = handshake.await.map_err(|_| ChannelError::Timeout)??;
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let key = shown.and_then(key_of).ok_or_else(|| io::Error::other("the client has shown no key"))?;
        Ok((TlsStream::Server(stream), key))
    }
}

/// The connecting side.
#[derive(Clone)]
pub struct Connect(TlsConnector);

impl Connect {
    /// Shows `key`, speaks to those with the keys `allowed`.
    ///
    /// # Errors
    /// When the key cannot be used.
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
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Connects. Whether the signer accepts this side's key shows with its first answer only.
    ///
    /// # Errors
    /// When nobody is there, or it is somebody else.
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
            // The name is not looked at: the key is.
            let name = ServerName::try_from("signer.invalid").expect("a valid name");
            Ok(TlsStream::Client(self.0.connect(name, stream).await?))
        };
        tokio::time::timeout(timeout, connect).await.map_err(|_| ChannelError::Timeout)?
    }
}

#[cfg(test)]
mod tests {
    use batzen_http::{Bound, Listen, Listener};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Whether a byte gets there and back, and whom the server has seen.
    async fn talk(
        server: Accept,
        client: &Connect,
    ) -> (Result<EddsaPublicKey, ChannelError>, io::Result<u8>) {
        let (listener, bound) = Listener::bind(Listen::localhost(0)).await.unwrap();
        let Bound::Tcp(address) = bound else { unreachable!() };
        let serve = tokio::spawn(async move {
            let (mut stream, key) = server.accept(listener.accept().await.unwrap(), PATIENCE).await?;
            let byte = stream.read_u8().await?;
            stream.write_u8(byte + 1).await?;
            stream.flush().await?;
            stream.shutdown().await?;
            Ok(key)
        });
        let ask = async {
            let address = Address::Tcp(address.to_string());
            let mut stream = client.connect(&address, PATIENCE).await.map_err(io::Error::other)?;
            stream.write_u8(6).await?;
            stream.flush().await?;
            stream.read_u8().await
        };
        let answer = ask.await;
        (serve.await.unwrap(), answer)
    }

    #[tokio::test]
    async fn both_sides_insist_on_the_keys_they_know() {
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
