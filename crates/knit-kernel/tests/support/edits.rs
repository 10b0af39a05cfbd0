//! Changes of living links, one field after the other.

use knit_model::link::Link;
use knit_model::{NetState, Scope, Step};

use super::states::name;
use super::world::World;

/// A change of one field of a link.
pub type Edit = (&'static str, fn(&mut Link));

/// Changes one field after the other, and sees each time that this field alone was changed, on the living link.
#[track_caller]
pub fn change_each(world: &World, state: &mut NetState, scope: &Scope, link: &str, edits: &[Edit]) {
    for (field, edit) in edits {
        let wanted = state.scope(scope).links.get_mut(&name(link)).unwrap();
        edit(wanted);
        let plan = world.make(state);
        let [planned] = plan.steps.as_slice() else { panic!("{field}:\n{plan}") };
        let Step::ChangeLink { changes, .. } = &planned.step else { panic!("{field}:\n{plan}") };
        assert_eq!(changes.iter().map(|change| change.field.as_str()).collect::<Vec<_>>(), [*field]);
    }
}
