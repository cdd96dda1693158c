//! The auditor's connection.

use std::time::{Duration, Instant};

use batzen_signer::address::Address;
use batzen_signer::channel::{Channel, Connect};
use tokio::io::WriteHalf;

use crate::chain::SignedHead;
use crate::io::{Half, IoError, Receiver, send};
use crate::message::{Answer, Hello, Request, VERSION};

/// Time that the exchange may take to accept a connection or a message.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that it may take to check what was seen.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(300);
/// Interval at which the exchange is told that the connection lives.
const ALIVE_INTERVAL: Duration = Duration::from_secs(5);

pub(super) struct Link {
    receiver: Receiver<Half>,
    writer: WriteHalf<Channel>,
    /// The exchange's store.
    pub store: [u8; 16],
    /// Time spent waiting since the exchange was last heard. Other work of the auditor is no silence of the exchange.
    waited: Duration,
    told: Instant,
}

impl Link {
    /// Connects and says hello. Returns the exchange's answer, too.
    pub(super) async fn connect(
        connect: &Connect,
        address: &Address,
        tables: Vec<u16>,
        seen: Option<SignedHead>,
        wants_snapshot: bool,
    ) -> Result<(Self, Answer), IoError> {
        let channel = connect.connect(address, STEP_TIMEOUT).await?;
        let (reader, writer) = tokio::io::split(channel);
        let receiver = Receiver::of_answers(reader);
        let mut link =
            Self { receiver, writer, store: [0; 16], waited: Duration::ZERO, told: Instant::now() };
        link.tell(&Request::Hello(Hello { version: VERSION, tables, seen, wants_snapshot })).await?;
        let answer = link.receiver.answer(WELCOME_TIMEOUT).await?;
        Ok((link, answer))
    }

    async fn tell(&mut self, request: &Request) -> Result<(), IoError> {
        send(&mut self.writer, &request.to_bytes(), STEP_TIMEOUT).await?;
        self.told = Instant::now();
        Ok(())
    }

    /// The next message within a time; none if the exchange may still be silent. It counts as lost once it was waited for
    /// this long.
    pub(super) async fn answer(
        &mut self,
        within: Duration,
        silence_max: Duration,
    ) -> Result<Option<Answer>, IoError> {
        match self.receiver.answer(within).await {
            Ok(answer) => {
                self.waited = Duration::ZERO;
                Ok(Some(answer))
            }
            Err(IoError::Timeout) => {
                self.waited += within;
                if self.waited < silence_max { Ok(None) } else { Err(IoError::Timeout) }
            }
            Err(error) => Err(error),
        }
    }

    /// Tells the exchange now and then that the connection lives.
    pub(crate) async fn stay_alive(&mut self) -> Result<(), IoError> {
        if self.told.elapsed() < ALIVE_INTERVAL {
            return Ok(());
        }
        self.tell(&Request::Alive).await
    }

    pub(super) async fn ask_comparison(&mut self) -> Result<(), IoError> {
        self.tell(&Request::Compare).await
    }

    pub(crate) async fn acknowledge(&mut self, head: SignedHead) -> Result<(), IoError> {
        self.tell(&Request::Ack(head)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The auditor checks a batch for longer than the exchange may be silent, and the exchange waits for its
    /// acknowledgement: afterwards it has as much time as ever.
    #[tokio::test]
    async fn only_time_in_which_the_auditor_listens_is_silence() {
        let (ours, theirs) = tokio::io::duplex(1 << 10);
        let (reader, writer) = tokio::io::split(Box::new(ours) as Channel);
        let mut link = Link {
            receiver: Receiver::of_answers(reader),
            writer,
            store: [0; 16],
            waited: Duration::ZERO,
            told: Instant::now(),
        };
        let (step, silence_max) = (Duration::from_millis(10), Duration::from_millis(25));
        std::thread::sleep(silence_max * 2);
        for _ in 0..2 {
            assert!(link.answer(step, silence_max).await.expect("it has time").is_none());
        }
        assert!(matches!(link.answer(step, silence_max).await, Err(IoError::Timeout)));
        drop(theirs);
    }
}
