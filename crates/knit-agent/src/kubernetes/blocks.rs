//! Address blocks: executes the engine's requests at the API server and feeds the watch of blocks into the loop.
//!
//! Creating a block claims it: of several nodes that try, the first one succeeds. A request is retried until it has a result;
//! [`knit_engine::blocks`] decides which blocks are claimed and released.

use std::sync::Arc;
use std::time::Duration;

use knit_crds::fields::PrefixText;
use knit_crds::states::{NODE_LABEL, PodAddressBlock, PodAddressBlockSpec};
use knit_engine::Event;
use knit_engine::blocks::{Block, BlockEvent, BlockRequest};
use knit_kube::WatchUpdate;
use knit_kube::kube::api::{DeleteParams, PostParams, Preconditions};
use knit_kube::kube::runtime::watcher;
use knit_kube::kube::{self, Api, ResourceExt};
use tokio::sync::{Notify, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::Context;

/// Interval of the review: a block that was empty from one review to the next is released.
const REVIEW_INTERVAL: Duration = Duration::from_secs(5);
/// Delay after a failed request.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Watches blocks and reviews them regularly.
///
/// `known` is signalled once the loop knows all blocks, or the API server rejects the watch: then pods that need a block report it.
pub(super) async fn run(context: Context, known: oneshot::Sender<()>) {
    let relist = Arc::new(Notify::new());
    tokio::spawn(watch(context.clone(), Arc::clone(&relist), known));
    let mut review = interval(REVIEW_INTERVAL);
    review.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        review.tick().await;
        // The loop may have reopened its state.
        if context.handle.query(|node| !node.state().blocks.has_synced()).await.unwrap_or_default() {
            relist.notify_one();
        }
        feed(&context, BlockEvent::ReviewDue);
    }
}

/// Executes a request.
pub(super) async fn execute(context: Context, request: BlockRequest) {
    match request {
        BlockRequest::Claim { name, pool, cidr } => {
            let node = context.node.to_string();
            let spec = PodAddressBlockSpec { pool, cidr: PrefixText(cidr.to_string()), node };
            claim(context, name, spec).await;
        }
        BlockRequest::Return { name, uid } => release(context, name, uid).await,
    }
}

/// Watches blocks. Lists them again when the loop has no list.
async fn watch(context: Context, relist: Arc<Notify>, known: oneshot::Sender<()>) {
    let mut known = Some(known);
    loop {
        let api: Api<PodAddressBlock> = Api::all(context.client.clone());
        let handle = |event: Result<WatchUpdate<PodAddressBlock>, &watcher::Error>| {
            let is_answer = match &event {
                Ok(seen) => matches!(seen, WatchUpdate::Listed(_)),
                Err(why) => is_rejection(why),
            };
            if let Some(news) = event.ok().and_then(|seen| news(&context, seen)) {
                if is_answer {
                    // The loop may have reopened its state.
                    context.handle.submit(Event::Blocks(BlockEvent::LocalNode(context.node.to_string())));
                }
                feed(&context, news);
            }
            if let Some(known) = known.take_if(|_| is_answer) {
                // The receiver may have ended.
                let _ = known.send(());
            }
        };
        let is_needed = async {
            relist.notified().await;
            // The list may be on its way.
            sleep(RETRY_INTERVAL).await;
            let listed = context.handle.query(|node| node.state().blocks.has_synced()).await;
            if !listed.is_ok_and(|is_listed| !is_listed) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = knit_kube::watch_with_errors("podaddressblocks", api, watcher::Config::default(), handle) => {}
            () = is_needed => {}
        }
    }
}

/// Converts a watch event for the engine.
fn news(context: &Context, seen: WatchUpdate<PodAddressBlock>) -> Option<BlockEvent> {
    Some(match seen {
        WatchUpdate::Listed(all) => {
            BlockEvent::Listed(all.iter().filter_map(|block| read(context, block)).collect())
        }
        WatchUpdate::Applied(block) => BlockEvent::Applied(read(context, &block)?),
        WatchUpdate::Deleted(block) => {
            BlockEvent::Deleted { name: block.name_any(), uid: block.uid().unwrap_or_default() }
        }
    })
}

/// Whether the API server rejects the watch: the CRD is not installed, or access is forbidden.
fn is_rejection(why: &watcher::Error) -> bool {
    let api = match why {
        watcher::Error::InitialListFailed(kube::Error::Api(why))
        | watcher::Error::WatchStartFailed(kube::Error::Api(why)) => why,
        _ => return false,
    };
    [403, 404].contains(&api.code)
}

/// Creates a block for this node, or finds its owner.
async fn claim(context: Context, name: String, spec: PodAddressBlockSpec) {
    let api: Api<PodAddressBlock> = Api::all(context.client.clone());
    let mut block = PodAddressBlock::new(&name, spec);
    let mut is_late = false;
    block.labels_mut().insert(NODE_LABEL.to_owned(), context.node.to_string());
    loop {
        let why = match timeout(REQUEST_TIMEOUT, create(&api, &block)).await {
            Ok(Ok(Some(existing))) => {
                if let Some(existing) = read(&context, &existing) {
                    tracing::info!(
                        block = name,
                        node = existing.node,
                        mine = existing.is_local,
                        "address block claimed"
                    );
                    feed(&context, BlockEvent::Applied(existing));
                    return;
                }
                format!("podaddressblock/{name} is invalid")
            }
            // It was deleted in between.
            Ok(Ok(None)) => continue,
            Ok(Err(why)) => why.to_string(),
            Err(_) => format!("no response from the API server within {} s", REQUEST_TIMEOUT.as_secs()),
        };
        if !std::mem::replace(&mut is_late, true) {
            tracing::warn!(block = name, why, "cannot claim an address block; retrying");
        }
        feed(&context, BlockEvent::ClaimFailed { name: name.clone(), error: why });
        sleep(RETRY_INTERVAL).await;
        let claimed = name.clone();
        let is_claiming = context.handle.query(move |node| node.state().blocks.is_claiming(&claimed)).await;
        if !is_claiming.unwrap_or_default() {
            return;
        }
    }
}

/// Returns the block that exists then, unless it was deleted at once.
async fn create(
    api: &Api<PodAddressBlock>,
    block: &PodAddressBlock,
) -> kube::Result<Option<PodAddressBlock>> {
    match api.create(&PostParams::default(), block).await {
        // Another node was first, or the response to this node was lost.
        Err(kube::Error::Api(why)) if why.code == 409 => api.get_opt(&block.name_any()).await,
        created => created.map(Some),
    }
}

/// Deletes a block, unless another block has its name by now.
async fn release(context: Context, name: String, uid: String) {
    let api: Api<PodAddressBlock> = Api::all(context.client.clone());
    let only = Preconditions { uid: Some(uid), ..Preconditions::default() };
    let params = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
    loop {
        match timeout(REQUEST_TIMEOUT, api.delete(&name, &params)).await {
            Ok(Ok(_)) => break,
            Ok(Err(kube::Error::Api(why))) if [404, 409].contains(&why.code) => break,
            Ok(Err(why)) => {
                tracing::debug!(block = name, error = %why, "cannot release the address block; retrying")
            }
            Err(_) => {}
        }
        sleep(RETRY_INTERVAL).await;
    }
    tracing::info!(block = name, "released an empty address block");
    feed(&context, BlockEvent::Returned { name });
}

fn feed(context: &Context, news: BlockEvent) {
    context.handle.submit(Event::Blocks(news));
    context.network_inputs.changed.notify_one();
    context.overlay_changed.notify_one();
}

/// Converts a block for the engine; `None` if its range is invalid.
fn read(context: &Context, block: &PodAddressBlock) -> Option<Block> {
    let PodAddressBlockSpec { pool, cidr, node } = &block.spec;
    Some(Block {
        name: block.name_any(),
        uid: block.uid().unwrap_or_default(),
        pool: pool.clone(),
        cidr: cidr.0.parse().ok()?,
        node: node.clone(),
        is_local: **node == *context.node,
    })
}
