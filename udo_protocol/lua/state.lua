-- State server: the place of a session's run in the order of its runs, and the call that uses it. Runs are ordered by their plans, which
-- the registry numbers, so that every slot and node finds the same order: plan * 2048 + 1, exact as a number until the year 2109. Runs of
-- one plan (a query restarted from the same DataFrame; limits.py has 2048 too) are ordered as they are first seen. A run first seen after
-- a run of a later plan is too late: -1. ARGV: session, run, call, plan.
local RUNS_OF_A_PLAN = 2048

local function run(keys, a)
  local key = keys[1] .. 'runs:' .. a[1]
  local known = redis.call('HGET', key, a[2])
  if not known then
    local plan = tonumber(a[4])
    local order = plan * RUNS_OF_A_PLAN + 1
    for _, other in ipairs(redis.call('HVALS', key)) do
      local others, of_plan = other:match('^(%d+) (%d+)')
      if tonumber(of_plan) > plan then return {-1, a[3]} end
      order = math.max(order, tonumber(others) + 1) -- changes it only for runs of one plan, and for those that a driver's clock has ordered
    end
    known = string.format('%.0f', order) .. ' ' .. a[4] .. ' ' .. a[3]
    redis.call('HSET', key, a[2], known)
  end
  redis.call('PERSIST', key) -- a dropped session that is used again keeps its order
  local order, call = known:match('^(%d+) %d+ (.*)$')
  return {tonumber(order), call}
end

-- State server: the stored form of groups (pieces.py). The values of a group are a piece: `g:{piece}`, its base, and `d:{piece}`, the
-- changes since. The manifest `m:{session}` has for each group `piece changes base_bytes change_bytes meta`. A savepoint
-- (savepoints.py) is a copy of all manifests: `savepoint:{name}` has info, ckpt and a field per session, `savepoint:{name}:sessions`
-- and `savepoint:{name}:m:{session}` are copies, for a rollback also `savepoint:{name}:dead` and so on. `savepoints`: name ->
-- `made until_ms held_bytes`, made below 0: it was given up. A piece is removed in the same step as the last manifest entry that names it.
local LETTERS = {'dead', 'pending', 'replay'}
local GIVEN_UP, REWOUND = -1, -2

local function piece_of(entry) return entry and entry:match('^(%S+) %d+ %d+ %d+ ') end

local function of_savepoint(p, name) return p .. 'savepoint:' .. name end

-- Whether a savepoint other than `but` names this piece for this group.
local function pinned(p, s, n, piece, found, but)
  for name in pairs(found) do
    if name ~= but and piece_of(try('HGET', of_savepoint(p, name) .. ':m:' .. s, n)) == piece then return true end
  end
  return false
end

local function remove_piece(p, piece) redis.call('UNLINK', p .. 'g:' .. piece, p .. 'd:' .. piece) end

-- Remove a savepoint, and the pieces that only it names. `found`: all savepoints.
local function unpin(p, name, found)
  local at = of_savepoint(p, name)
  for _, field in ipairs(try('HKEYS', at) or {}) do
    local s = field:match('^session (.*)$')
    local flat = s and try('HGETALL', at .. ':m:' .. s) or {}
    for i = 1, #flat, 2 do
      local n, piece = flat[i], piece_of(flat[i + 1])
      if piece and piece_of(try('HGET', p .. 'm:' .. s, n)) ~= piece and not pinned(p, s, n, piece, found, name) then
        remove_piece(p, piece)
      end
    end
    if s then redis.call('UNLINK', at .. ':m:' .. s) end
  end
  for _, kind in ipairs(LETTERS) do redis.call('UNLINK', at .. ':' .. kind) end
  redis.call('UNLINK', at, at .. ':sessions')
  try('HDEL', p .. 'savepoints', name)
  found[name] = nil
end

-- All savepoints, also those given up: name -> {made, until_ms, held}. Removes those whose lease has ended, except `but`.
local function savepoints(p, but)
  local found, ended, now, flat = {}, {}, now_ms(), try('HGETALL', p .. 'savepoints') or {}
  for i = 1, #flat, 2 do
    local made, till, held = flat[i + 1]:match('^(-?%d+) (%d+) (%d+)$')
    found[flat[i]] = {tonumber(made), till, tonumber(held)}
    if not till or (tonumber(till) < now and flat[i] ~= but) then ended[#ended + 1] = flat[i] end
  end
  for _, name in ipairs(ended) do unpin(p, name, found) end
  return found
end

local function note(p, name, made, till, held)
  local entry = string.format('%.0f %.0f %.0f', made, till, held)
  if not try('HSET', p .. 'savepoints', name, entry) then
    redis.call('DEL', p .. 'savepoints')
    redis.call('HSET', p .. 'savepoints', name, entry)
  end
end

local function give_up(p, name, why, found)
  local till = found[name][2]
  unpin(p, name, found)
  note(p, name, why, tonumber(till), 0)
end

-- Make a savepoint. ARGV: name, lease_ms, info, whether it includes the dead letters.
local function savepoint(keys, a)
  local p, name, found = keys[1], a[1], savepoints(keys[1])
  unpin(p, name, found)
  local at, now = of_savepoint(p, name), now_ms()
  redis.call('HSET', at, 'info', a[3], 'ckpt', redis.call('GET', p .. 'ckpt') or '')
  redis.call('COPY', p .. 'sessions', at .. ':sessions')
  for _, s in ipairs(redis.call('HKEYS', p .. 'sessions')) do
    redis.call('HSET', at, 'session ' .. s, 1)
    redis.call('COPY', p .. 'm:' .. s, at .. ':m:' .. s)
  end
  for _, kind in ipairs(LETTERS) do
    if a[4] == '1' then redis.call('COPY', p .. kind, at .. ':' .. kind) end
  end
  note(p, name, now, now + tonumber(a[2]), 0)
  return 1
end

-- ARGV: name, lease_ms. Returns 1, or why the savepoint is gone: 0, or the value stored in place of the time at which it was made.
local function hold_savepoint(keys, a)
  local p, name = keys[1], a[1]
  local it = savepoints(p)[name]
  if not it then return 0 end
  if it[1] < 0 then return it[1] end
  note(p, name, it[1], now_ms() + tonumber(a[2]), it[3])
  return 1
end

-- ARGV: name.
local function drop_savepoint(keys, a)
  unpin(keys[1], a[1], savepoints(keys[1]))
  return 1
end

-- Remove these groups' pieces, which the owner is about to replace or drop, except those that savepoints name. Beyond the
-- bound the oldest savepoint is given up. ARGV: session, bound, groups.
local function replaced(keys, a)
  local p, s, found = keys[1], a[1], savepoints(keys[1])
  for i = 3, #a do
    local n = a[i]
    local entry = redis.call('HGET', p .. 'm:' .. s, n)
    local piece = piece_of(entry)
    if piece then
      local base, changes = entry:match('^%S+ %d+ (%d+) (%d+) ')
      local total = 0
      for name, it in pairs(found) do
        if piece_of(try('HGET', of_savepoint(p, name) .. ':m:' .. s, n)) == piece then
          it[3] = it[3] + base + changes
          note(p, name, it[1], tonumber(it[2]), it[3])
        end
        total = total + it[3]
      end
      while total > tonumber(a[2]) do
        local oldest
        for name, it in pairs(found) do
          if it[1] >= 0 and it[3] > 0 and (not oldest or it[1] < found[oldest][1]) then oldest = name end
        end
        total = total - found[oldest][3]
        give_up(p, oldest, GIVEN_UP, found)
      end
      if not pinned(p, s, n, piece, found) then remove_piece(p, piece) end
    end
  end
  return 1
end

local function move(from, to)
  if redis.call('EXISTS', from) == 1 then redis.call('RENAME', from, to) end
end

-- Let all readers of the changelog load again, since the state does not continue from their positions. `why` replaces these positions.
local function load_again(p, why)
  for _, name in ipairs(try('HKEYS', p .. 'readers') or {}) do
    local till = redis.call('HGET', p .. 'readers', name):match('%d+$')
    redis.call('HSET', p .. 'readers', name, why .. ' ' .. (till or 0))
  end
end

-- Go back to a savepoint, which is removed; in the step of the first checkpoint made from it. Later changes are cut off, so other
-- savepoints are given up, and readers of the changelog have to load again. ARGV: name.
local function rewind(keys, a)
  local p, found = keys[1], savepoints(keys[1], a[1])
  local at = of_savepoint(p, a[1])
  if redis.call('EXISTS', at) == 0 then return 0 end
  for name, it in pairs(found) do
    if name ~= a[1] and it[1] >= 0 then give_up(p, name, REWOUND, found) end
  end
  for _, s in ipairs(redis.call('HKEYS', p .. 'sessions')) do
    local flat = redis.call('HGETALL', p .. 'm:' .. s)
    for i = 1, #flat, 2 do
      local piece = piece_of(flat[i + 1])
      if piece and piece_of(redis.call('HGET', at .. ':m:' .. s, flat[i])) ~= piece then remove_piece(p, piece) end
    end
    redis.call('DEL', p .. 'm:' .. s)
  end
  for _, s in ipairs(redis.call('HKEYS', at .. ':sessions')) do
    move(at .. ':m:' .. s, p .. 'm:' .. s)
    local flat = redis.call('HGETALL', p .. 'm:' .. s)
    for i = 1, #flat, 2 do
      local piece, changes = flat[i + 1]:match('^(%S+) (%d+) ')
      if changes == '0' then redis.call('DEL', p .. 'd:' .. piece) else redis.call('LTRIM', p .. 'd:' .. piece, 0, changes - 1) end
    end
  end
  redis.call('DEL', p .. 'sessions', p .. 'riding', p .. 'ckpt')
  move(at .. ':sessions', p .. 'sessions')
  for _, kind in ipairs(LETTERS) do
    redis.call('UNLINK', p .. kind)
    move(at .. ':' .. kind, p .. kind)
  end
  local ckpt = redis.call('HGET', at, 'ckpt')
  if ckpt ~= '' then redis.call('SET', p .. 'ckpt', ckpt) end
  load_again(p, REWOUND)
  unpin(p, a[1], {})
  return 1
end

redis.register_function('udo_savepoint', savepoint)
redis.register_function('udo_hold_savepoint', hold_savepoint)
redis.register_function('udo_drop_savepoint', drop_savepoint)
redis.register_function('udo_replaced', replaced)
redis.register_function('udo_rewind', rewind)
redis.register_function('udo_run', run)
