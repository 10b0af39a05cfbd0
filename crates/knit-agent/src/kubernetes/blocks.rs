//! Blocks of addresses: what the engine orders, done at the API server, and what the API server tells of them.
//!
//! Creating a block is claiming it: of several nodes that try, the API server takes the first one's word. An order is tried
//! until it is answered; which blocks are claimed and which go back is decided in [`knit_engine::blocks`].

use std::sync::Arc;
use std::time::Duration;

use knit_crds::fields::PrefixText;
use knit_crds::states::{NODE_LABEL, PodAddressBlock, PodAddressBlockSpec};
use knit_engine::Event;
use knit_engine::blocks::{Block, News, Order};
use knit_kube::Seen;
use knit_kube::kube::api::{DeleteParams, PostParams, Preconditions};
use knit_kube::kube::runtime::watcher;
use knit_kube::kube::{self, Api, ResourceExt};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::Shared;

/// Blocks that are empty at two looks in a row go back.
const REVIEW: Duration = Duration::from_secs(5);
/// What could not be done is tried again after this long.
const AGAIN: Duration = Duration::from_secs(1);
/// An API server that has not answered by then does not.
const PATIENCE: Duration = Duration::from_secs(10);

/// Does what is ordered, for as long as it is polled.
///
/// `known` is told once the loop knows which blocks there are, or the API server says that it will not tell: then pods that
/// need a block say so.
pub(super) async fn follow(shared: Shared, mut orders: UnboundedReceiver<Order>, known: oneshot::Sender<()>) {
    let relist = Arc::new(Notify::new());
    tokio::spawn(watch(shared.clone(), Arc::clone(&relist), known));
    let mut review = interval(REVIEW);
    review.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                Some(Order::Claim { name, pool, cidr }) => {
                    let spec = PodAddressBlockSpec { pool, cidr: PrefixText(cidr.to_string()), node: shared.node.to_string() };
                    tokio::spawn(claim(shared.clone(), name, spec));
                }
                Some(Order::Return { name, uid }) => {
                    tokio::spawn(give_back(shared.clone(), name, uid));
                }
                None => return,
            },
            _ = review.tick() => {
                let relist = Arc::clone(&relist);
                shared.handle.feed(move |state| {
                    if !state.blocks.is_listed() {
                        // The loop may have begun anew, from what is written down.
                        relist.notify_one();
                    }
                    let news = state.blocks.has_any().then_some(Event::Blocks(News::Reviewed));
                    news.into_iter().collect()
                });
            }
        }
    }
}

/// Tells the loop which blocks there are. A list is told anew when the loop has none.
async fn watch(shared: Shared, relist: Arc<Notify>, known: oneshot::Sender<()>) {
    let mut known = Some(known);
    loop {
        let api: Api<PodAddressBlock> = Api::all(shared.client.clone());
        let tell = |heard: Result<Seen<PodAddressBlock>, &watcher::Error>| {
            let is_answer = match &heard {
                Ok(seen) => matches!(seen, Seen::Listed(_)),
                Err(why) => is_refusal(why),
            };
            if let Some(news) = heard.ok().and_then(|seen| news(&shared, seen)) {
                feed(&shared, news);
            }
            if let Some(known) = known.take_if(|_| is_answer) {
                // Whoever waits for it may have ended.
                let _ = known.send(());
            }
        };
        let is_needed = async {
            relist.notified().await;
            // The list may be on its way.
            sleep(AGAIN).await;
            let asked = shared.handle.ask(|node| node.state().blocks.is_listed()).await;
            if !asked.is_ok_and(|is_listed| !is_listed) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = knit_kube::follow_with("podaddressblocks", api, watcher::Config::default(), tell) => {}
            () = is_needed => {}
        }
    }
}

/// What a watch tells, in the engine's words.
fn news(shared: &Shared, seen: Seen<PodAddressBlock>) -> Option<News> {
    Some(match seen {
        Seen::Listed(all) => News::Listed(all.iter().filter_map(|block| read(shared, block)).collect()),
        Seen::Applied(block) => News::Applied(read(shared, &block)?),
        Seen::Deleted(block) => {
            News::Deleted { name: block.name_any(), uid: block.uid().unwrap_or_default() }
        }
    })
}

/// Whether an API server is there and does not tell: the kind is not installed, or it may not be read.
fn is_refusal(why: &watcher::Error) -> bool {
    let api = match why {
        watcher::Error::InitialListFailed(kube::Error::Api(why))
        | watcher::Error::WatchStartFailed(kube::Error::Api(why)) => why,
        _ => return false,
    };
    [403, 404].contains(&api.code)
}

/// Creates a block for this node, or finds out whose it is.
async fn claim(shared: Shared, name: String, spec: PodAddressBlockSpec) {
    let api: Api<PodAddressBlock> = Api::all(shared.client.clone());
    let mut block = PodAddressBlock::new(&name, spec);
    let mut is_late = false;
    block.labels_mut().insert(NODE_LABEL.to_owned(), shared.node.to_string());
    loop {
        let why = match timeout(PATIENCE, create(&api, &block)).await {
            Ok(Ok(Some(there))) => {
                if let Some(there) = read(&shared, &there) {
                    tracing::info!(
                        block = name,
                        node = there.node,
                        mine = there.mine,
                        "a block of addresses is held"
                    );
                    feed(&shared, News::Applied(there));
                    return;
                }
                format!("podaddressblock/{name} cannot be read")
            }
            // It went between two looks.
            Ok(Ok(None)) => continue,
            Ok(Err(why)) => why.to_string(),
            Err(_) => format!("the API server has not answered for {} s", PATIENCE.as_secs()),
        };
        if !std::mem::replace(&mut is_late, true) {
            tracing::warn!(block = name, why, "no block of addresses could be claimed; it is tried again");
        }
        feed(&shared, News::Refused { name: name.clone(), why });
        sleep(AGAIN).await;
        let asked = name.clone();
        let is_wanted = shared.handle.ask(move |node| node.state().blocks.is_claiming(&asked)).await;
        if !is_wanted.unwrap_or_default() {
            return;
        }
    }
}

/// The block that there is then, if it did not go at once.
async fn create(
    api: &Api<PodAddressBlock>,
    block: &PodAddressBlock,
) -> kube::Result<Option<PodAddressBlock>> {
    match api.create(&PostParams::default(), block).await {
        // Somebody else was first, or an answer to this node was lost.
        Err(kube::Error::Api(why)) if why.code == 409 => api.get_opt(&block.name_any()).await,
        made => made.map(Some),
    }
}

/// Deletes a block, unless its name is another block's by now.
async fn give_back(shared: Shared, name: String, uid: String) {
    let api: Api<PodAddressBlock> = Api::all(shared.client.clone());
    let only = Preconditions { uid: Some(uid), ..Preconditions::default() };
    let params = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
    loop {
        match timeout(PATIENCE, api.delete(&name, &params)).await {
            Ok(Ok(_)) => break,
            Ok(Err(kube::Error::Api(why))) if [404, 409].contains(&why.code) => break,
            Ok(Err(why)) => tracing::debug!(block = name, %why, "could not be given back; it is tried again"),
            Err(_) => {}
        }
        sleep(AGAIN).await;
    }
    tracing::info!(block = name, "an empty block of addresses was given back");
    feed(&shared, News::Returned { name });
}

fn feed(shared: &Shared, news: News) {
    shared.handle.feed(move |_| vec![Event::Blocks(news)]);
    shared.ranges.changed.notify_one();
    shared.spans.notify_one();
}

/// A block in the engine's words; one whose range makes no sense is nobody's.
fn read(shared: &Shared, block: &PodAddressBlock) -> Option<Block> {
    let PodAddressBlockSpec { pool, cidr, node } = &block.spec;
    Some(Block {
        name: block.name_any(),
        uid: block.uid().unwrap_or_default(),
        pool: pool.clone(),
        cidr: cidr.0.parse().ok()?,
        node: node.clone(),
        mine: **node == *shared.node,
    })
}
