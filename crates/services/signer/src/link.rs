//! A connection to one signer with one request at a time: for operators, for followers, and for requests that
//! go to every signer.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;
use zeroize::Zeroizing;

use crate::address::Address;
use crate::channel::{Channel, ChannelError, Connect};
use crate::frame::{
    HEADER_BYTES, Header, Hello, ItemStatus, Kind, Malformed, Side, Status, VERSION, open_blob,
};
use crate::items::{Item, SignedItem, parse_answer};
use crate::modules::Secret;
use crate::secrets::{self, Wanted};
use crate::status::StatusReport;

type Result<T, E = LinkError> = std::result::Result<T, E>;

/// Why a signer did not do what it was asked to do.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// It cannot be reached, or presented another key.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// It closed the connection.
    #[error("it closed the connection: {0}")]
    Closed(std::io::Error),
    /// It closed the connection before its first answer.
    #[error("the signer closed the connection (is this side's key listed there?): {0}")]
    Unwelcome(std::io::Error),
    /// It speaks another protocol.
    #[error("the signer's answer is malformed")]
    Malformed,
    /// It refused the request.
    #[error("the signer refused: {}", describe(*.0))]
    Refused(Status),
}

impl From<Malformed> for LinkError {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

/// A refusal in words.
pub(crate) fn describe(status: Status) -> &'static str {
    match status {
        Status::Done => "done",
        Status::Busy => "too many requests are waiting",
        Status::Forbidden => "this client may not do this",
        Status::Version => "it speaks another version of the protocol",
        Status::Malformed => "the request was malformed",
        Status::NotReady => "it has no keys yet",
        Status::Failed => "it failed; its log says why",
    }
}

/// A connection to one signer.
pub struct Link {
    channel: Channel,
    next: u64,
    step_timeout: Duration,
}

/// Exchanges the hellos of a connection.
///
/// # Errors
/// If the peer is not a signer of this version.
pub(crate) async fn greet(connect: &Connect, channel: &mut Channel, wait: Duration) -> Result<Hello> {
    match timeout(wait, hello(channel)).await.map_err(|_| ChannelError::Timeout)? {
        Err(LinkError::Closed(error)) if connect.presents_key() => Err(LinkError::Unwelcome(error)),
        hello => hello,
    }
}

async fn hello(channel: &mut Channel) -> Result<Hello> {
    let mut out = Header::request(Kind::Hello, 0, 1, 0).to_bytes().to_vec();
    out.extend_from_slice(&Hello { version: VERSION, items_max: 0, keys_version: 0 }.to_bytes());
    channel.write_all(&out).await.map_err(LinkError::Closed)?;
    channel.flush().await.map_err(LinkError::Closed)?;
    let (header, body) = read_frame(channel).await?;
    match (header.kind, header.status) {
        (Kind::Hello, Status::Done) => {}
        (_, status) if status != Status::Done => return Err(LinkError::Refused(status)),
        _ => return Err(LinkError::Malformed),
    }
    let hello = Hello::from_bytes(&body)?;
    if hello.version == VERSION { Ok(hello) } else { Err(LinkError::Refused(Status::Version)) }
}

/// Reads one answer. Its body is wiped when dropped, since it may contain private keys.
pub(crate) async fn read_frame(
    reader: &mut (impl tokio::io::AsyncRead + Unpin),
) -> Result<(Header, Zeroizing<Vec<u8>>)> {
    let mut head = [0; HEADER_BYTES];
    reader.read_exact(&mut head).await.map_err(LinkError::Closed)?;
    let header = Header::from_bytes(&head, Side::Answer)?;
    let mut body = Zeroizing::new(vec![0; header.body]);
    reader.read_exact(&mut body).await.map_err(LinkError::Closed)?;
    Ok((header, body))
}

impl Link {
    /// Connects and exchanges hellos. `step_timeout` limits every step from now on.
    ///
    /// # Errors
    /// If the signer cannot be reached, presents another key, or does not know this side.
    pub async fn connect(connect: &Connect, address: &Address, step_timeout: Duration) -> Result<Self> {
        let mut channel = connect.connect(address, step_timeout).await?;
        greet(connect, &mut channel, step_timeout).await?;
        Ok(Self { channel, next: 1, step_timeout })
    }

    /// Sends a request and waits for the answer's body.
    ///
    /// # Errors
    /// If there is no answer, or a refusal.
    pub(crate) async fn call(
        &mut self,
        kind: Kind,
        modulus: usize,
        count: usize,
        body: &[u8],
        extra_step_timeout: Duration,
    ) -> Result<Zeroizing<Vec<u8>>> {
        let id = self.next;
        self.next += 1;
        let header = Header::request(kind, modulus, count, id);
        debug_assert_eq!(header.body, body.len());
        let exchange = async {
            self.channel.write_all(&header.to_bytes()).await.map_err(LinkError::Closed)?;
            self.channel.write_all(body).await.map_err(LinkError::Closed)?;
            self.channel.flush().await.map_err(LinkError::Closed)?;
            read_frame(&mut self.channel).await
        };
        let answer = timeout(self.step_timeout + extra_step_timeout, exchange).await;
        let (answer, body) = answer.map_err(|_| ChannelError::Timeout)??;
        if answer.id != id || answer.kind != kind {
            return Err(LinkError::Malformed);
        }
        if answer.status == Status::Done { Ok(body) } else { Err(LinkError::Refused(answer.status)) }
    }

    /// Fetches private keys for a follower: those of the wanted keys that the signer has.
    ///
    /// # Errors
    /// If it does not answer, or this side is not a peer.
    pub async fn secrets(&mut self, wanted: &[Wanted]) -> Result<Vec<Secret>> {
        let mut body = Vec::new();
        for wanted in wanted {
            wanted.push(&mut body);
        }
        let answer = self.call(Kind::Secrets, 0, wanted.len(), &body, Duration::ZERO).await?;
        Ok(secrets::read_answer(open_blob(&answer)?)?)
    }

    /// Asks for the signer's status.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn status(&mut self) -> Result<StatusReport> {
        let body = self.call(Kind::Status, 0, 1, &[0; 8], Duration::ZERO).await?;
        serde_json::from_slice(open_blob(&body)?).map_err(|_| LinkError::Malformed)
    }

    /// Makes the signer the primary, with an epoch above `above`.
    ///
    /// # Errors
    /// If it does not answer, or has no keys.
    pub async fn promote(&mut self, above: u64) -> Result<StatusReport> {
        let body = self.call(Kind::Promote, 0, 1, &above.to_le_bytes(), Duration::ZERO).await?;
        serde_json::from_slice(open_blob(&body)?).map_err(|_| LinkError::Malformed)
    }

    /// Fetches the encoded listing if its version differs from this one. Waits a while for a change.
    ///
    /// # Errors
    /// If the signer does not answer.
    pub(crate) async fn listing(&mut self, known: u64, wait: Duration) -> Result<Option<Vec<u8>>> {
        let mut item = known.to_le_bytes().to_vec();
        item.resize(16, 0);
        let body = self.call(Kind::Listing, 0, 1, &item, wait).await?;
        let content = open_blob(&body)?;
        Ok((!content.is_empty()).then(|| content.to_vec()))
    }

    /// Asks the signer to destroy one key.
    ///
    /// # Errors
    /// If the signer does not answer.
    pub(crate) async fn revoke(&mut self, item: &Item, wait: Duration) -> Result<Result<(), ItemStatus>> {
        let mut body = Vec::new();
        item.push(&mut body);
        let answer = self.call(item.kind(), 0, 1, &body, wait).await?;
        Ok(parse_answer(item.kind(), &answer)?.map(|_: SignedItem| ()))
    }
}
