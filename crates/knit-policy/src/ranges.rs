//! Arithmetic on address ranges.

use ipnet::IpNet;

/// The addresses of a range that are in none of the others, as ranges that do not overlap.
pub(crate) fn without(range: IpNet, except: &[IpNet]) -> Vec<IpNet> {
    let mut left = vec![range];
    for hole in except {
        left = left.into_iter().flat_map(|range| subtract(range, *hole)).collect();
    }
    left
}

fn subtract(range: IpNet, hole: IpNet) -> Vec<IpNet> {
    if hole.contains(&range) {
        return Vec::new();
    }
    if !range.contains(&hole) {
        return vec![range];
    }
    // The half without the hole stays, the other one is divided further.
    let mut left = Vec::new();
    let mut with_hole = range;
    while with_hole != hole {
        let halves = with_hole.subnets(with_hole.prefix_len() + 1).into_iter().flatten();
        let (containing, others): (Vec<IpNet>, Vec<IpNet>) = halves.partition(|half| half.contains(&hole));
        left.extend(others);
        let Some(next) = containing.first() else { break };
        with_hole = *next;
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(range: &str, except: &[&str]) -> Vec<String> {
        let except: Vec<IpNet> = except.iter().map(|text| text.parse().unwrap()).collect();
        let mut left = without(range.parse().unwrap(), &except);
        left.sort();
        left.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn holes_are_left_out() {
        assert_eq!(left("10.0.0.0/30", &[]), ["10.0.0.0/30"]);
        assert_eq!(left("10.0.0.0/30", &["10.0.0.1/32"]), ["10.0.0.0/32", "10.0.0.2/31"]);
        assert_eq!(left("10.0.0.0/30", &["10.0.0.0/8"]), [""; 0]);
        assert_eq!(left("10.0.0.0/30", &["10.9.0.0/16", "fd00::/8"]), ["10.0.0.0/30"]);
        assert_eq!(left("10.0.0.0/30", &["10.0.0.0/31", "10.0.0.3/32"]), ["10.0.0.2/32"]);
        assert_eq!(left("0.0.0.0/0", &["128.0.0.0/1"]), ["0.0.0.0/1"]);
        assert_eq!(left("fd00::/126", &["fd00::2/127"]), ["fd00::/127"]);
    }
}
