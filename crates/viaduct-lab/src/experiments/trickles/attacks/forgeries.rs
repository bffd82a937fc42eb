//! Forgeries, replays and thefts, each derived from a request that the server would answer.

use viaduct_proto::trickles::wire::Response;

use super::Counts;
use super::raw_client::{RawClient, Step, connect, first_step, now, receive, send};
use crate::experiment::SeriesId;
use crate::experiments::prelude::*;
use crate::experiments::trickles::replicas::{Replicas, SERVICE, Service};
use crate::experiments::trickles::served::PORT;

/// Size of the file in bytes.
const FILE: usize = 3_000_000;
/// Bytes that a client fetches honestly before it attacks.
const HONEST: u64 = 100_000;
const REPLAYS: usize = 200;
/// Time to wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(100);

struct Attack<'a> {
    world: &'a Replicas,
    server: &'a Service,
    to: SocketAddr,
    rng: Rng,
    series: [SeriesId; 2],
    column: f64,
    /// Server's counters at the last reading. Honest clients cause no refusals.
    counted: Counts,
}

pub(super) fn run(run: &mut Run, world: &Replicas, server: &Service) -> Result<()> {
    world.file("file", FILE, run.seed())?;
    let plot = Plot::histogram("Forgeries", ("attack", ""), ("requests", ""));
    let series = ["sent", "refused"].map(|name| run.series(&plot, name));
    let (to, rng) = (SocketAddr::new(SERVICE.into(), PORT), Rng::from_seed(run.seed()));
    let mut attack =
        Attack { world, server, to, rng, series, column: 0.0, counted: Counts::read(server)? };
    attack.altered(run)?;
    attack.optimistic(run)?;
    attack.unproven(run)?;
    attack.replayed(run)?;
    attack.stolen(run)?;
    attack.users(run)
}

impl Attack<'_> {
    /// Starts a client that has an open window and sends nothing more.
    fn client(&mut self) -> Result<RawClient> {
        let mut client = RawClient::new(self.world.net.a1(), self.to, "file", self.rng.next_u64())?;
        client.run_until(HONEST)?;
        // Drains packets in flight, which must not count as answers to the attack.
        client.count_answers(ANSWER_TIMEOUT)?;
        Ok(client)
    }

    /// Sends all forged messages `lies`. Each must be refused, counted in the counter that
    /// `counted` selects, and remain unanswered.
    fn all_refused(
        &mut self,
        run: &mut Run,
        name: &str,
        client: &mut RawClient,
        lies: &[Vec<u8>],
        counted: fn(Counts) -> u64,
    ) -> Result<()> {
        for lie in lies {
            client.send(lie)?;
        }
        let (answers, _) = client.count_answers(ANSWER_TIMEOUT)?;
        let refused = counted(self.since_last()?);
        self.draw(run, name, lies.len(), refused);
        let share = refused as f64 / lies.len() as f64;
        run.within(&format!("{name}: share refused and counted"), share, 1.0, 1.0);
        run.at_most(&format!("{name}: answer packets"), answers as f64, 0.0);
        Ok(())
    }

    fn since_last(&mut self) -> Result<Counts> {
        let now = Counts::read(self.server)?;
        Ok(now.since(std::mem::replace(&mut self.counted, now)))
    }

    fn draw(&mut self, run: &mut Run, name: &str, sent: usize, refused: u64) {
        run.labelled_point(self.series[0], self.column, sent as f64, name);
        run.labelled_point(self.series[1], self.column, refused as f64, name);
        self.column += 1.0;
    }

    /// Alters each byte of a continuation in turn.
    fn altered(&mut self, run: &mut Run) -> Result<()> {
        let mut client = self.client()?;
        let message = first_step(&mut client.held)?;
        let at = Step::parse(&message).context("not a step")?.continuation();
        let lies: Vec<_> = at
            .map(|byte| {
                let mut lie = message.clone();
                lie[byte] ^= 1 << self.rng.below(8);
                lie
            })
            .collect();
        self.all_refused(run, "altered continuations", &mut client, &lies, |c| c.forged)?;
        self.still_answered(run, &mut client, &message)
    }

    /// Checks that forgeries do not invalidate the original request, which may have been overheard.
    fn still_answered(
        &mut self,
        run: &mut Run,
        client: &mut RawClient,
        message: &[u8],
    ) -> Result<()> {
        client.send(message)?;
        let (answers, _) = client.count_answers(ANSWER_TIMEOUT)?;
        let name = "original of the forgeries: answer packets";
        run.at_least(name, answers as f64, 1.0);
        Ok(())
    }

    /// Acknowledges packets that have not arrived: writes their numbers into a continuation.
    fn optimistic(&mut self, run: &mut Run) -> Result<()> {
        /// Offset of the packet number in a continuation.
        const NUMBER: usize = 24;
        let mut client = self.client()?;
        let message = first_step(&mut client.held)?;
        let at = Step::parse(&message).context("not a step")?.continuation().start + NUMBER;
        let number: [u8; 4] = message[at..at + 4].try_into()?;
        let lies: Vec<_> = (1..=100)
            .map(|ahead| {
                let mut lie = message.clone();
                let claimed = u32::from_be_bytes(number).wrapping_add(ahead);
                lie[at..at + 4].copy_from_slice(&claimed.to_be_bytes());
                lie
            })
            .collect();
        self.all_refused(run, "optimistic requests", &mut client, &lies, |c| c.forged)
    }

    /// Sends authentic continuations with guessed nonces.
    fn unproven(&mut self, run: &mut Run) -> Result<()> {
        let mut client = self.client()?;
        let message = first_step(&mut client.held)?;
        let step = Step::parse(&message).context("not a step")?;
        let lies: Vec<_> =
            (0..REPLAYS).map(|_| step.without_losses(self.rng.next_u64() | 1)).collect();
        self.all_refused(run, "guessed nonces", &mut client, &lies, |c| c.unproven)
    }

    fn replayed(&mut self, run: &mut Run) -> Result<()> {
        let mut client = self.client()?;
        let message = first_step(&mut client.held)?;
        client.send(&message)?;
        client.count_answers(ANSWER_TIMEOUT)?;
        let lies = vec![message; REPLAYS];
        self.all_refused(run, "replayed requests", &mut client, &lies, |c| c.replayed)
    }

    /// Sends overheard requests from another address. The server may answer with an address token,
    /// but never with more bytes than the request has.
    fn stolen(&mut self, run: &mut Run) -> Result<()> {
        let mut client = self.client()?;
        let thief = connect(&self.world.net.hosts_a()[1], self.to)?;
        let (mut sent, mut came, mut answers) = (0, 0, 0);
        let stolen: Vec<_> = std::mem::take(&mut client.held).into();
        let restarts: Vec<_> =
            stolen.iter().filter_map(|message| Some(Step::parse(message)?.restarting())).collect();
        for message in stolen.iter().chain(&restarts).cycle().take(REPLAYS) {
            send(&thief, 0, message)?;
            sent += message.len();
        }
        let end = now() + ANSWER_TIMEOUT;
        while now() < end {
            if let Some(message) = receive(&thief, end - now())? {
                came += message.len();
                answers += 1;
            }
        }
        let counts = self.since_last()?;
        self.draw(run, "stolen requests", REPLAYS, counts.moved + counts.greedy);
        let name = "stolen requests: bytes of answers, relative to bytes sent";
        run.at_most(name, came as f64 / sent as f64, 1.0);
        let name = "stolen requests: share refused or counted as a move";
        let counted = (counts.moved + counts.greedy + counts.forged) as f64 / REPLAYS as f64;
        run.at_least(name, counted, 1.0);
        let name = "stolen requests: answers other than address tokens";
        run.at_most(name, f64::max(0.0, answers as f64 - counts.moved as f64), 0.0);
        Ok(())
    }

    /// Alters user continuations: the server answers these requests without any data.
    fn users(&mut self, run: &mut Run) -> Result<()> {
        let mut client = self.client()?;
        let message = first_step(&mut client.held)?;
        let (group, _) = viaduct_proto::trickles::wire::Request::parse(&message)
            .ok()
            .and_then(|request| request.groups.into_iter().next())
            .context("no request asks for output")?;
        let end = group.as_ptr() as usize - message.as_ptr() as usize + group.len();
        let mut lie = message.clone();
        // The last byte belongs to the sealed state.
        lie[end - 1] ^= 1;
        client.send(&lie)?;
        let (mut data, mut answers, until) = (0, 0, now() + ANSWER_TIMEOUT);
        while now() < until {
            if let Some(answer) = receive(&client.socket, until - now())? {
                data += Response::parse(&answer).map_or(0, |answer| answer.payload.data.len());
                answers += 1;
            }
        }
        let counted = self.since_last()?.unknown;
        self.draw(run, "altered user continuations", 1, counted);
        run.within("altered user continuations: counted", counted as f64, 1.0, 1.0);
        run.at_most("altered user continuations: bytes of data", data as f64, 0.0);
        run.at_least("altered user continuations: answers", f64::from(answers), 1.0);
        Ok(())
    }
}
