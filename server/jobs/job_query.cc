#include "server/jobs/job_query.h"

#include <algorithm>
#include <string_view>

#include "server/base/strings.h"

namespace nibble::jobs {

using base::StrCat;

namespace {

// Needs no escaping: state names are constants, never a caller's text.
std::string Quoted(JobState state) { return StrCat("'", Name(state), "'"); }

std::string And(const std::string& left, const std::string& right) {
  if (left.empty() || right.empty()) return StrCat(left, right);
  return StrCat(left, " AND ", right);
}

// `where`: conditions that `index` covers; `rest`: the other conditions. With an empty `index`, walks the table.
std::string Walk(std::string_view index, const std::string& where, const std::string& rest) {
  return StrCat("SELECT number, ", rest.empty() ? "1" : rest, " AS wanted FROM jobs",
                index.empty() ? "" : " INDEXED BY ", index, " WHERE ", And(where, "number < :before"));
}

// Walks the jobs that have the first label, and looks up the other labels for each of these jobs.
std::string ByLabel(const JobQuery& query, const std::string& rest, SqlTexts& texts) {
  std::string wanted = rest;
  int i = 0;
  for (const auto& [key, value] : query.labels) {
    texts[StrCat("key", i)] = key;
    texts[StrCat("value", i)] = value;
    if (i > 0) {
      wanted = And(wanted, StrCat("EXISTS (SELECT 1 FROM job_labels AS other WHERE other.key = :key", i,
                                  " AND other.value = :value", i, " AND other.number = label.number)"));
    }
    ++i;
  }
  return StrCat("SELECT label.number AS number, ", wanted.empty() ? "1" : wanted,
                " AS wanted FROM job_labels AS label CROSS JOIN jobs ON jobs.number = label.number "
                "WHERE label.key = :key0 AND label.value = :value0 AND label.number < :before");
}

// One walk per state. SQLite merges the walks, and reads each only as far as :limit requires.
std::string ByStates(const std::vector<JobState>& states, bool by_tenant, const std::string& rest) {
  std::string sql;
  for (const JobState state : states) {
    const std::string where = And(by_tenant ? "tenant = :tenant" : "", StrCat("state = ", Quoted(state)));
    sql = StrCat(sql, sql.empty() ? "" : " UNION ALL ",
                 Walk(by_tenant ? "jobs_by_tenant_state" : "jobs_by_state", where, rest));
  }
  return sql;
}

}  // namespace

std::string StateIsOneOf(const std::vector<JobState>& states) {
  std::string names;
  for (const JobState state : states) names = StrCat(names, names.empty() ? "" : ", ", Quoted(state));
  return StrCat("state IN (", names, ")");
}

std::string CandidateSql(const JobQuery& query, SqlTexts& texts) {
  std::vector<JobState> states = query.states;
  std::sort(states.begin(), states.end());
  states.erase(std::unique(states.begin(), states.end()), states.end());
  if (states.size() == static_cast<std::size_t>(kNumJobStates)) states.clear();
  const bool by_tenant = query.tenant.has_value(), by_base = query.base_model.has_value();
  if (by_tenant) texts["tenant"] = *query.tenant;
  if (by_base) texts["base"] = *query.base_model;
  const std::string tenant_condition = by_tenant ? "tenant = :tenant" : "",
                    base_condition = by_base ? "base_model = :base" : "";
  const std::string state_condition = states.empty() ? "" : StateIsOneOf(states);
  // Few jobs are open, whatever the size of the table, so a walk by open states is short.
  const bool few_jobs = !states.empty() && std::none_of(states.begin(), states.end(), IsFinal);

  std::string sql;
  if (!query.labels.empty()) {
    sql = ByLabel(query, And(And(tenant_condition, base_condition), state_condition), texts);
  } else if (few_jobs || (!states.empty() && !by_base)) {
    sql = ByStates(states, by_tenant, base_condition);
  } else if (by_base) {
    sql = Walk(by_tenant ? "jobs_by_tenant_base" : "jobs_by_base", And(tenant_condition, base_condition),
               state_condition);
  } else {
    sql = Walk(by_tenant ? "jobs_by_tenant" : "", tenant_condition, "");
  }
  return StrCat(sql, " ORDER BY number DESC LIMIT :limit");
}

}  // namespace nibble::jobs
