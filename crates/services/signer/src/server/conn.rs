//! One connection: it reads frames and sends answers as soon as they are ready, in any order.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use zeroize::Zeroizing;

use super::sign;
use crate::channel::Channel;
use crate::frame::{
    HEADER_BYTES, Header, Hello, ItemStatus, Kind, Malformed, Side, Status, VERSION, pad_blob,
};
use crate::items::{Item, SignedItem, push_answer};
use crate::listing::NO_VERSION;
use crate::secrets;
use crate::server_limits::{LISTING_WAIT, REQUESTS_MAX};
use crate::state::{Client, ClientKind, Signer};

/// The maximum number of items of one connection under way.
pub(crate) const ITEMS_MAX: usize = 8192;
/// The maximum number of answers that may wait for the network, including refusals. A client that does not
/// read them is disconnected.
const ANSWERS_MAX: usize = 2 * REQUESTS_MAX;
/// A client requests the listing at least this often. A silent client is disconnected.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for the rest of a frame after its first byte, and for the client to read its answers.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of answers written at once.
const WRITE_BATCH: usize = 128;
const READ_BUFFER_BYTES: usize = 64 << 10;

/// An answer to be written.
enum Out {
    Plain(Vec<u8>),
    Secret(Zeroizing<Vec<u8>>),
}

/// State that the reader and the tasks of one connection share.
struct ConnectionState {
    signer: Arc<Signer>,
    answers: mpsc::Sender<Out>,
    items: AtomicUsize,
}

/// Serves one client until it disconnects, sends a malformed frame, or the process ends.
pub(super) async fn serve(signer: &Arc<Signer>, channel: Channel, client: &Client) {
    let _present = signer.metrics.connections.enter();
    tracing::debug!(client = client.name, "connected");
    let (reader, writer) = tokio::io::split(channel);
    let (answers, outgoing) = mpsc::channel(ANSWERS_MAX);
    let shared =
        Arc::new(ConnectionState { signer: Arc::clone(signer), answers, items: AtomicUsize::new(0) });
    let writer = tokio::spawn(write(writer, outgoing));
    let mut reader = BufReader::with_capacity(READ_BUFFER_BYTES, reader);
    let mut tasks = JoinSet::new();
    let ended = read(&shared, &mut reader, client, &mut tasks).await;
    match ended {
        Ok(()) | Err(Ended::Gone) => {}
        Err(Ended::Slow) => tracing::warn!(client = client.name, "client did not complete a frame in time"),
        Err(Ended::Malformed) => {
            signer.metrics.malformed.inc();
            tracing::warn!(client = client.name, "sent a malformed frame");
        }
    }
    // Pending requests are answered, unless the client has disconnected.
    let finish = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(TRANSFER_TIMEOUT, finish).await.is_err() {
        tasks.abort_all();
    }
    drop(tasks);
    drop(shared);
    // Its own timeouts end it.
    let _ = writer.await;
    tracing::debug!(client = client.name, "gone");
}

/// Why a connection ends.
enum Ended {
    /// The client disconnected, or the process is ending.
    Gone,
    /// A frame was not completed in time.
    Slow,
    /// The client does not speak the protocol.
    Malformed,
}

impl From<Malformed> for Ended {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

async fn read(
    shared: &Arc<ConnectionState>,
    reader: &mut BufReader<tokio::io::ReadHalf<Channel>>,
    client: &Client,
    tasks: &mut JoinSet<()>,
) -> Result<(), Ended> {
    let mut greeted = false;
    loop {
        let mut head = [0; HEADER_BYTES];
        let idle = tokio::time::timeout(IDLE_TIMEOUT, reader.read_exact(&mut head[..1]));
        let got = tokio::select! {
            biased;
            () = shared.signer.drain.draining() => return Ok(()),
            got = idle => got,
        };
        got.map_err(|_| Ended::Gone)?.map_err(|_| Ended::Gone)?;
        // Limits the time of a whole frame, however steadily its bytes arrive.
        let rest = async {
            reader.read_exact(&mut head[1..]).await.map_err(|_| Ended::Gone)?;
            let header = Header::from_bytes(&head, Side::Request)?;
            let mut body = vec![0; header.body];
            reader.read_exact(&mut body).await.map_err(|_| Ended::Gone)?;
            Ok::<_, Ended>((header, body))
        };
        let rest = tokio::time::timeout(TRANSFER_TIMEOUT, rest).await;
        let (header, body) = rest.map_err(|_| Ended::Slow)??;
        if !greeted {
            greeted = true;
            if header.kind != Kind::Hello {
                return Err(Ended::Malformed);
            }
            let hello = Hello::from_bytes(&body)?;
            if hello.version != VERSION {
                shared.refuse(&header, Status::Version)?;
                return Ok(());
            }
            let items_max = u32::try_from(ITEMS_MAX).expect("a small number");
            let keys_version = shared.signer.keys().version;
            let hello = Hello { version: VERSION, items_max, keys_version }.to_bytes();
            let mut out = header.answer().to_bytes().to_vec();
            out.extend_from_slice(&hello);
            shared.send(Out::Plain(out))?;
            continue;
        }
        while tasks.try_join_next().is_some() {}
        if tasks.len() >= REQUESTS_MAX {
            shared.signer.metrics.busy.inc();
            shared.refuse(&header, Status::Busy)?;
            continue;
        }
        if !may_ask(client.kind, header.kind) {
            shared.signer.metrics.forbidden.inc();
            tracing::warn!(
                client = client.name,
                kind = header.kind.name(),
                "client may not make this request"
            );
            shared.refuse(&header, Status::Forbidden)?;
            continue;
        }
        shared.request(header, &body, tasks)?;
    }
}

/// Returns whether a kind of client may make a kind of request.
fn may_ask(client: ClientKind, kind: Kind) -> bool {
    match kind {
        Kind::Hello => false,
        Kind::Listing => client != ClientKind::Operator,
        Kind::Rsa | Kind::Cs | Kind::Values | Kind::Eddsa => client == ClientKind::Node,
        Kind::RevokeDenomination | Kind::RevokeSigning => client == ClientKind::Node,
        Kind::Secrets => client == ClientKind::Peer,
        Kind::Status => true,
        Kind::Promote => client == ClientKind::Operator,
    }
}

impl ConnectionState {
    /// Passes an answer to the writer. A client that does not read its answers is disconnected.
    fn send(&self, out: Out) -> Result<(), Ended> {
        self.answers.try_send(out).map_err(|_| Ended::Gone)
    }

    fn refuse(&self, header: &Header, status: Status) -> Result<(), Ended> {
        self.send(Out::Plain(header.refusal(status).to_bytes().to_vec()))
    }

    /// Runs a task whose answer is sent when it is done.
    fn spawn(self: &Arc<Self>, tasks: &mut JoinSet<()>, work: impl Future<Output = Out> + Send + 'static) {
        let shared = Arc::clone(self);
        let started = Instant::now();
        tasks.spawn(async move {
            let out = work.await;
            shared.signer.metrics.time.time(started.elapsed());
            // If the send fails, the writer has ended, and with it the connection.
            let _ = shared.send(out);
        });
    }

    fn request(self: &Arc<Self>, header: Header, body: &[u8], tasks: &mut JoinSet<()>) -> Result<(), Ended> {
        let signer = Arc::clone(&self.signer);
        match header.kind {
            Kind::Hello => return Err(Ended::Malformed),
            Kind::Listing => {
                let known = u64::from_le_bytes(*body.first_chunk().ok_or(Malformed)?);
                self.spawn(tasks, async move { listing(&signer, header, known).await });
            }
            Kind::Rsa | Kind::Cs | Kind::Values | Kind::Eddsa => {
                let items = sign::read_items(&header, body)?;
                self.sign(header, items, tasks)?;
            }
            Kind::RevokeDenomination | Kind::RevokeSigning => {
                let items = sign::read_items(&header, body)?;
                signer.metrics.items(header.kind, items.len());
                self.spawn(tasks, async move {
                    let mut results = Vec::with_capacity(items.len());
                    for item in items {
                        results.push(revoke(&signer, item).await.map(|()| SignedItem::Nothing));
                    }
                    answer(&signer, header, &results)
                });
            }
            Kind::Secrets => {
                let wanted = secrets::read_request(body)?;
                self.spawn(tasks, async move {
                    match secrets::export(&signer, &wanted) {
                        Ok(content) => {
                            let blob = Zeroizing::new(pad_blob(&content));
                            let mut out = Vec::with_capacity(HEADER_BYTES + blob.len());
                            out.extend_from_slice(&header.blob(blob.len()).to_bytes());
                            out.extend_from_slice(&blob);
                            Out::Secret(Zeroizing::new(out))
                        }
                        Err(status) => Out::Plain(header.refusal(status).to_bytes().to_vec()),
                    }
                });
            }
            Kind::Status => self.send(status(&signer, header))?,
            Kind::Promote => {
                let above = u64::from_le_bytes(*body.first_chunk().ok_or(Malformed)?);
                let out = if signer.keys().version == NO_VERSION {
                    Out::Plain(header.refusal(Status::NotReady).to_bytes().to_vec())
                } else if let Err(error) = signer.promote(above) {
                    tracing::error!(%error, "cannot be promoted");
                    Out::Plain(header.refusal(Status::Failed).to_bytes().to_vec())
                } else {
                    status(&signer, header)
                };
                self.send(out)?;
            }
        }
        Ok(())
    }

    fn sign(
        self: &Arc<Self>,
        header: Header,
        items: Vec<Item>,
        tasks: &mut JoinSet<()>,
    ) -> Result<(), Ended> {
        let count = items.len();
        let signer = Arc::clone(&self.signer);
        signer.metrics.items(header.kind, count);
        tracing::debug!(
            number = header.id,
            kind = header.kind.name(),
            items = count,
            "request of an exchange"
        );
        let under_way = self.items.fetch_add(count, Relaxed) + count;
        let making =
            if under_way > ITEMS_MAX { Err(Status::Busy) } else { sign::begin(&signer, header.kind, items) };
        match making {
            Err(status) => {
                self.items.fetch_sub(count, Relaxed);
                signer.metrics.busy.inc();
                self.refuse(&header, status)
            }
            Ok(making) => {
                let shared = Arc::clone(self);
                self.spawn(tasks, async move {
                    let results = making.finish().await;
                    shared.items.fetch_sub(count, Relaxed);
                    answer(&signer, header, &results)
                });
                Ok(())
            }
        }
    }
}

fn answer(signer: &Signer, header: Header, results: &[Result<SignedItem, ItemStatus>]) -> Out {
    let header = header.answer();
    let mut out = Vec::with_capacity(HEADER_BYTES + header.body);
    out.extend_from_slice(&header.to_bytes());
    for result in results {
        if let Err(status) = result {
            signer.metrics.refused(*status);
        }
        push_answer(header.kind, header.modulus, result, &mut out);
    }
    Out::Plain(out)
}

fn blob(header: Header, content: &[u8]) -> Out {
    let blob = pad_blob(content);
    let mut out = header.blob(blob.len()).to_bytes().to_vec();
    out.extend_from_slice(&blob);
    Out::Plain(out)
}

fn status(signer: &Signer, header: Header) -> Out {
    let report = serde_json::to_vec(&signer.status()).expect("a report can be written as JSON");
    blob(header, &report)
}

/// Sends the listing once it differs from the known one. After a while, sends an empty one, which means that
/// nothing has changed.
async fn listing(signer: &Signer, header: Header, known: u64) -> Out {
    let mut changes = signer.snapshot.subscribe();
    let changed = changes.wait_for(|keys| keys.version != known && keys.version != NO_VERSION);
    let keys = tokio::select! {
        () = signer.drain.draining() => None,
        keys = tokio::time::timeout(LISTING_WAIT, changed) => {
            keys.ok().and_then(Result::ok).map(|keys| Arc::clone(&keys))
        }
    };
    blob(header, keys.as_ref().map_or(&[][..], |keys| &keys.encoded))
}

async fn revoke(signer: &Signer, item: Item) -> Result<(), ItemStatus> {
    match item {
        Item::RevokeDenomination { key, age_mask, master_sig } => {
            signer.revoke_denomination(key, age_mask, &master_sig).await
        }
        Item::RevokeSigning { key, master_sig } => signer.revoke_signing(key, &master_sig).await,
        _ => unreachable!("items are of the frame's kind"),
    }
}

async fn write(mut writer: WriteHalf<Channel>, mut outgoing: mpsc::Receiver<Out>) {
    let mut waiting = Vec::with_capacity(WRITE_BATCH);
    let mut plain = Vec::new();
    while outgoing.recv_many(&mut waiting, WRITE_BATCH).await > 0 {
        let send = async {
            plain.clear();
            for out in waiting.drain(..) {
                match out {
                    Out::Plain(bytes) => plain.extend_from_slice(&bytes),
                    // Encrypted directly from here, without another copy.
                    Out::Secret(bytes) => writer.write_all(&bytes).await?,
                }
            }
            writer.write_all(&plain).await?;
            writer.flush().await
        };
        let sent = tokio::time::timeout(TRANSFER_TIMEOUT, send).await;
        if !matches!(sent, Ok(Ok(()))) {
            return;
        }
    }
    // The receiver may have disconnected.
    let _ = tokio::time::timeout(TRANSFER_TIMEOUT, writer.shutdown()).await;
}
